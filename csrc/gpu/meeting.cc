// How the ranks of a host come to share memory on their devices, and how they let go of it.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "gpu/neighbourhood.h"
#include "gpu/verdict.h"

namespace ringdp::gpu {
namespace {

bool all_by_fd(const std::vector<Card>& cards) {
  return std::all_of(cards.begin(), cards.end(), [](const Card& card) { return card.memory.needs_fd != 0; });
}

plan::DeviceTopology topology_of(const ArenaLayout& layout, int world, int executor, Reach reach) {
  plan::DeviceTopology topology;
  topology.world = world;
  topology.full_mesh = reach == Reach::kAll;
  topology.can_push = executor == RD_GPU_SPIN;
  topology.stage_bytes = layout.stage_bytes;
  topology.pushed_bytes = layout.pushed_bytes;
  return topology;
}

}  // namespace

std::unique_ptr<Neighbourhood> Neighbourhood::meet(const Functions& functions, int device,
                                                   const Surroundings& surroundings) {
  std::unique_ptr<Neighbourhood> neighbourhood(new Neighbourhood(functions, device, surroundings));
  for (const int sharing : {RD_GPU_SHARE_AUTO, RD_GPU_SHARE_FD}) {
    if (neighbourhood->try_sharing(sharing, surroundings)) break;
  }
  return neighbourhood;
}

bool Neighbourhood::try_sharing(int sharing, const Surroundings& surroundings) {
  why_not_.clear();
  UniqueFd own;
  const Card card = offer(sharing, surroundings, &own);
  const std::vector<Card> cards = cards_from(surroundings.tell_all(to_bytes(card)));
  why_not_ = gpu::why_not(cards);
  if (why_not_.empty()) {
    placement_ = place(cards);
    why_not_ = placement_.why_not;
  }
  if (!why_not_.empty()) {  // all ranks see the same cards, and nobody has mapped anything
    drop_own();
    return true;
  }
  const std::string failure = map_all(cards, surroundings.pass_fds(sockets_of(cards), own.get()), surroundings);
  const Verdicts verdicts = verdicts_from(surroundings.tell_all(to_bytes(verdict_on(memory_, failure))));
  settle(verdicts.reached, verdicts.first_failure, sharing);
  if (why_not_.empty()) return true;
  take_down(surroundings);
  return all_by_fd(cards) || sharing == RD_GPU_SHARE_FD;
}

// This rank's card, with memory behind it where it can be had.
Card Neighbourhood::offer(int sharing, const Surroundings& surroundings, UniqueFd* fd) {
  try {
    Card card = card_of(functions_, device_);
    load_kernels(functions_);
    arena_ = std::make_unique<Arena>(functions_, device_, layout_, sharing);
    if (world_ == 1) return card;
    const auto own = static_cast<size_t>(rank_);
    page_ = std::make_unique<OwnPage>(surroundings.heap, surroundings.heaps[own]);
    card.page = page_->offset();
    card.memory = arena_->handle(fd);
    put(card.socket, surroundings.socket);
    return card;
  } catch (const Error& error) {
    drop_own();
    return card_without(error.what());
  }
}

// "" or why some of it is missing.
std::string Neighbourhood::map_all(const std::vector<Card>& cards, std::vector<UniqueFd> fds,
                                   const Surroundings& surroundings) {
  memory_.assign(static_cast<size_t>(world_), nullptr);
  memory_[static_cast<size_t>(rank_)] = arena_->memory();
  pages_.clear();
  std::string failure;
  for (int rank = 0; rank < world_ && world_ > 1; ++rank) {
    const auto at = static_cast<size_t>(rank);
    try {
      pages_.push_back(page_of(rank, cards[at], surroundings));
      if (rank != rank_) map(rank, cards[at], fds[at].get());
    } catch (const Error& error) {
      if (failure.empty()) failure = "memory of rank " + std::to_string(rank) + ": " + error.what();
    }
  }
  if (!failure.empty() && pages_.size() < cards.size()) unmap();
  if (world_ == 1 || pages_.size() < cards.size()) return failure;
  map_pages();
  if (pages_serve_ || !on_streams()) return failure;
  unmap();  // who cannot post to all reaches nobody
  return failure.empty() ? why_no_pages_ : failure;
}

void Neighbourhood::map_pages() {
  why_no_pages_.clear();
  try {
    mapped_pages_ = std::make_unique<MappedPages>(functions_, pages_);
    pages_serve_ = true;
  } catch (const Error& error) {
    why_no_pages_ = error.what();
  }
}

// Cards come from other processes: no page that leaves its heap is followed.
HostPage* Neighbourhood::page_of(int rank, const Card& card, const Surroundings& surroundings) {
  if (card.page < 0 || card.page % alignof(Flags) != 0 || card.page > surroundings.heap_bytes - OwnPage::bytes()) {
    throw Error(ErrorKind::kInternal, "its shared page at " + std::to_string(card.page) + " is not in its heap");
  }
  return reinterpret_cast<HostPage*>(surroundings.heaps[static_cast<size_t>(rank)] + card.page);
}

void Neighbourhood::map(int rank, const Card& card, int fd) {
  void* memory = nullptr;
  require(functions_, functions_.import_memory(device_, &card.memory, fd, &memory));
  memory_[static_cast<size_t>(rank)] = static_cast<char*>(memory);
}

void Neighbourhood::settle(const std::vector<uint32_t>& reached, const std::string& first_failure, int sharing) {
  reach_ = reach_of(reached);
  topology_ = topology_of(layout_, world_, placement_.executor, reach_);
  if (reach_ == Reach::kTooFew) why_not_ = first_failure.empty() ? "devices do not reach each other" : first_failure;
  if (reach_ != Reach::kAll || world_ == 1) return;
  segments_ = std::make_unique<Segments>(functions_, device_, rank_, sharing, why_no_pages_);
}

void Neighbourhood::take_down(const Surroundings& surroundings) {
  mapped_pages_.reset();
  unmap();
  surroundings.tell_all(std::string(1, '\0'));  // importers close before exporters free
  drop_own();
}

// Nobody looks at anybody's memory: the others' pages may be somebody else's from now on.
void Neighbourhood::drop_own() {
  pages_serve_ = false;
  pages_.clear();
  arena_.reset();
  page_.reset();
}

void Neighbourhood::unmap() {
  for (size_t rank = 0; rank < memory_.size(); ++rank) {
    if (memory_[rank] == nullptr || static_cast<int>(rank) == rank_) continue;
    functions_.unimport_memory(memory_[rank]);
    memory_[rank] = nullptr;
  }
}

// Once: a page whose owner has heard it from all may be somebody else's memory.
void Neighbourhood::part() {
  if (std::exchange(has_parted_, true)) return;
  mapped_pages_.reset();
  if (segments_) segments_->unmap();
  unmap();
  for (HostPage* const page : pages_) __atomic_store_n(&page->parted[rank_], 1u, __ATOMIC_RELEASE);
}

// Of this rank alone: peers may not have come as far.
void Neighbourhood::stay() {
  __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
  if (page_) __atomic_store_n(&page_->page().abort, 1u, __ATOMIC_RELEASE);
  stays_ = true;
}

bool Neighbourhood::is_alone() const {
  if (!page_) return true;
  for (int rank = 0; rank < world_; ++rank) {
    if (__atomic_load_n(&page_->page().parted[rank], __ATOMIC_ACQUIRE) == 0) return false;
  }
  return true;
}

}  // namespace ringdp::gpu
