#include "transport/shm/own_heap.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "transport/shm/local_arenas.h"

namespace ringdp::transport {
namespace {

constexpr int64_t kHeapBytes = 1 << 20;

OwnHeap acquired(const std::string& group, int64_t bytes = kHeapBytes) { return OwnHeap::acquire(group, bytes, 0, 2); }

// A tensor in a heap keeps that heap, as HeapAllocator does.
struct Tensor {
  std::shared_ptr<Heap> heap;
  std::byte* block;

  explicit Tensor(const OwnHeap& in, int64_t bytes = 100) : heap(in.heap()), block(heap->take(bytes)) {}
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;
  ~Tensor() { heap->release(block); }
};

TEST(OwnHeap, TheNextGroupGetsTheHeapInWhichTensorsLie) {
  std::optional<OwnHeap> first = acquired("own heap");
  const Tensor tensor(*first);
  const Heap* const heap = first->heap().get();
  const std::byte* const at = first->memory()->data();
  std::memset(tensor.block, 7, 100);
  first.reset();
  const OwnHeap second = acquired("own heap");
  EXPECT_EQ(second.heap().get(), heap);
  EXPECT_EQ(second.memory()->data(), at);
  EXPECT_EQ(tensor.block[99], std::byte{7});
  const Segment peers = Segment::map_heap(duplicate(second.memory()->fd()), kHeapBytes);
  EXPECT_EQ(peers.data()[tensor.block - at], std::byte{7}) << "a peer of the second group sees it";
}

TEST(OwnHeap, BelongsToOneGroupAtATime) {
  OwnHeap first = acquired("own heap");
  const Tensor tensor(first);
  OwnHeap second = acquired("own heap");
  EXPECT_NE(second.heap(), first.heap());
  first.give_back();
  OwnHeap third = acquired("own heap");
  EXPECT_EQ(third.heap(), first.heap());
  first.give_back();  // the second call, when it is another group's
  EXPECT_NE(acquired("own heap").heap(), third.heap());
}

TEST(OwnHeap, WithoutTensorsItIsGoneWithItsGroup) {
  std::weak_ptr<Heap> heap;
  std::weak_ptr<const Segment> memory;
  {
    const OwnHeap first = acquired("own heap");
    heap = first.heap();
    memory = first.memory();
    const Tensor tensor(first);
  }
  EXPECT_TRUE(heap.expired());
  EXPECT_TRUE(memory.expired());
}

TEST(OwnHeap, ThatOfAGroupOfTheSameNameComesFirstThenTheOneWithTheMostTensors) {
  std::optional<OwnHeap> few = acquired("few"), some = acquired("some"), many = acquired("many");
  const Tensor of_few(*few, 100), of_some(*some, 5000), of_many(*many, 50'000);
  few.reset();
  some.reset();
  many.reset();
  const OwnHeap named = acquired("few"), other = acquired("another"), last = acquired("yet another");
  EXPECT_EQ(named.heap(), of_few.heap);
  EXPECT_EQ(other.heap(), of_many.heap);
  EXPECT_EQ(last.heap(), of_some.heap);
}

TEST(OwnHeap, ItsNameIsThatOfItsLastGroup) {
  std::optional<OwnHeap> first = acquired("first"), other = acquired("other");
  const Tensor tensor(*first), more(*other, 50'000);
  first.reset();
  { const OwnHeap renamed = acquired("first"); }
  other.reset();
  { const OwnHeap renamed = acquired("other"); }
  EXPECT_EQ(acquired("first").heap(), tensor.heap);
}

TEST(OwnHeap, OneOfAnotherSizeStaysWhereItIs) {
  std::optional<OwnHeap> first = acquired("own heap");
  const Tensor tensor(*first);
  first.reset();
  EXPECT_NE(acquired("own heap", 2 * kHeapBytes).heap(), tensor.heap);
  EXPECT_EQ(acquired("own heap").heap(), tensor.heap);
}

TEST(OwnHeap, OfNoBytesIsNone) {
  const OwnHeap none = acquired("own heap", 0);
  EXPECT_EQ(none.heap(), nullptr);
  EXPECT_EQ(none.memory(), nullptr);
}

// Of an arena whose group has left, or could not be built.
TEST(OwnHeap, AnArenaGivesItBack) {
  for (const bool has_left : {true, false}) {
    auto arenas = separately_mapped_arenas({2, 64, 64, kHeapBytes}, {});
    const std::shared_ptr<Heap> heap = arenas[0]->heap();
    heap->take(100);
    if (has_left) {
      arenas[0]->give_heap_back();
    } else {
      arenas.clear();
    }
    EXPECT_TRUE(heap->adopt());
  }
}

}  // namespace
}  // namespace ringdp::transport
