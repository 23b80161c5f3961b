// How a collective opens, two ranks' headers and what follows from them; frames of collectives that share a link.
#include <map>
#include <memory>

#include "collective/framed_link.h"
#include "collective/header_exchange.h"
#include "comm/fingerprint.h"
#include "target.h"

namespace ringdp::fuzz {

// How a collective opens (csrc/collective/header_exchange.h): two ranks' headers, in pieces, and what follows from
// them.
namespace {

using comm::OpDesc;
using transport::Header;

constexpr int64_t kHeapBytes = 4096;

// Before this in a header is what must be equal on all ranks; behind it what is shown, and what is each rank's own.
constexpr size_t kEqualBytes = 64;

// Two heaps, each just as large as it says.
class Heaps final : public transport::Arena {
 public:
  int index() const override { return 0; }
  int size() const override { return 2; }
  std::byte* slot(int, int) const override { return nullptr; }
  int64_t slot_bytes() const override { return 0; }
  std::byte* heap_at(int member) const override { return heaps_[member].get(); }
  int64_t heap_bytes() const override { return kHeapBytes; }
  const std::shared_ptr<transport::Heap>& heap() const override { return none_; }
  void give_heap_back() override {}
  std::shared_ptr<const void> mappings() const override { return nullptr; }
  void post_header(uint64_t, const Header&) override {}
  void wake() const override {}
  uint64_t last_header(int) const override { return 0; }
  const Header& header(int, uint64_t) const override { return note_; }
  void arrive() override {}
  bool passed(uint64_t) const override { return true; }
  uint64_t arrived(int) const override { return 0; }
  int core(int) const override { return -1; }
  void publish_core() override {}
  void retire(uint64_t) override {}
  uint64_t retired(int) const override { return 0; }
  void fence(int64_t, int64_t) override {}
  void set_asleep(bool) override {}

 private:
  std::unique_ptr<std::byte[]> heaps_[2] = {std::make_unique<std::byte[]>(kHeapBytes),
                                            std::make_unique<std::byte[]>(kHeapBytes)};
  std::shared_ptr<transport::Heap> none_;
  Header note_{};
};

OpDesc any_op(Input& input) {
  OpDesc op;
  op.what = static_cast<plan::Collective>(input.up_to(plan::kCollectiveCount - 1));
  op.place = static_cast<comm::Place>(input.up_to(comm::kPlaceCount - 1));
  op.dtype = static_cast<DType>(input.up_to(kDTypeCount - 1));
  op.op = static_cast<ReduceOp>(input.up_to(kReduceOpCount - 1));
  op.root = input.up_to(1);
  op.count = input.number<uint16_t>();
  const int parts = input.up_to(3);
  if (parts == 0) op.counts = {input.number<uint8_t>(), input.number<uint8_t>()};
  const bool may_have_roots = op.what == plan::Collective::kAllReduce || op.what == plan::Collective::kReduceScatter;
  if (parts == 1 && may_have_roots) {
    op.roots = std::make_shared<plan::Roots>(plan::Roots{4, {{{0, 1}, {2, 3}}, {{1, 2}, {3, 4}}}});
  }
  op.divisor = input.number<uint8_t>();
  op.buffer = input.up_to(1);
  op.gives = input.up_to(1) != 0;
  op.seq = 1 + input.number<uint32_t>();
  return op;
}

plan::Problem problem_of(const OpDesc& op) {
  plan::Problem problem;
  problem.what = op.what;
  problem.dtype = op.dtype;
  problem.op = op.op;
  problem.world = 2;
  problem.root = op.root;
  problem.count = op.count;
  if (problem.has_parts()) problem.counts = op.counts;
  problem.roots = op.roots;
  return problem;
}

// A rank's tensor must lie in its heap, which is exactly as large as it says.
void check_inside(const std::byte* heap, const std::byte* tensor) {
  require(tensor == nullptr || (tensor >= heap && tensor <= heap + kHeapBytes), "tensors lie in their heap");
}

void check_places(const plan::Problem& problem, const comm::Placement& own, const comm::Placement& theirs) {
  static const Heaps heaps;
  const auto found = comm::locate(problem, {own, theirs}, heaps);
  if (!found) return;
  for (int rank = 0; rank < 2; ++rank) {
    const auto& tensors = (*found)[static_cast<size_t>(rank)];
    for (const std::byte* input : tensors.inputs) check_inside(heaps.heap_at(rank), input);
    check_inside(heaps.heap_at(rank), tensors.output);
  }
}

}  // namespace

FUZZ_TARGET(header) {
  const OpDesc op = any_op(input);
  comm::Placement placement{input.number<int64_t>(), input.number<int64_t>(), input.number<int64_t>()};
  const size_t piece = 1 + input.number<uint8_t>();
  const Header own = comm::encode(op);
  Header theirs = comm::encode(op, placement, {input.number<uint64_t>(), input.number<int64_t>()});
  const int changes = input.up_to(4);
  for (int i = 0; i < changes; ++i) {
    std::byte& changed = theirs.bytes[input.number<uint8_t>() % sizeof theirs.bytes];
    changed ^= input.number<std::byte>();
  }

  FromPeer link(piece);
  link.sent.assign(reinterpret_cast<const char*>(theirs.bytes), sizeof theirs.bytes);
  collective::Fabric fabric;
  fabric.links = {nullptr, &link};
  collective::Opening opening;
  opening.seq = op.seq;
  opening.header = own;
  opening.check = [&](int rank, const Header& header) { comm::check_same(op, 0, header, rank); };
  collective::HeaderExchange headers(fabric, 0, 2, std::move(opening));
  const bool refused = refuses({ErrorKind::kMismatch}, [&] {
    while (headers.advance()) {
    }
  });
  require(refused || headers.done(), "a header that has come is checked");
  require(refused || std::memcmp(own.bytes, theirs.bytes, kEqualBytes) == 0, "ranks that go on agree");
  require(!refused || changes > 0, "equal ranks agree");
  comm::remarks_in(theirs);
  if (!refused && op.place == comm::Place::kHost) {
    check_places(problem_of(op), comm::placement_in(own), comm::placement_in(theirs));
  }
}

// What a peer sends for several collectives at once (csrc/collective/framed_link.h).
namespace {

// Frames of a peer, and the payload of each collective in them.
struct Sent {
  std::string bytes;
  std::map<uint64_t, std::string> payloads;
};

Sent any_frames(Input& input) {
  Sent sent;
  while (input.left() > 0) {
    const bool is_whole = input.up_to(15) > 0;
    collective::Frame frame = collective::make_frame(input.number<uint32_t>() % 16, input.number<uint32_t>());
    if (!is_whole) frame.sum ^= 1u << input.up_to(31);
    const std::string payload = input.bytes(frame.bytes);
    sent.bytes.append(reinterpret_cast<const char*>(&frame), sizeof frame).append(payload);
    sent.payloads[frame.seq] += payload;
  }
  return sent;
}

}  // namespace

FUZZ_TARGET(framed_link) {
  const size_t ahead = input.number<uint16_t>();
  FromPeer link(1 + input.number<uint8_t>());
  const Sent sent = any_frames(input);
  link.sent = sent.bytes;
  collective::FramedLink framed(link, 1, ahead);
  refuses({ErrorKind::kInternal}, [&] {
    for (uint64_t seq = 1; seq <= 4; ++seq) {
      std::string got;
      for (size_t before = SIZE_MAX; link.sent.size() < before;) {
        before = link.sent.size();
        char bytes[64];
        while (const size_t n = framed.try_recv(seq, bytes, sizeof bytes)) got.append(bytes, n);
      }
      const auto payload = sent.payloads.find(seq);
      require(got.empty() || (payload != sent.payloads.end() && payload->second.compare(0, got.size(), got) == 0),
              "a collective gets what was sent to it");
    }
  });
}

}  // namespace ringdp::fuzz
