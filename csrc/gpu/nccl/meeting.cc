// How ranks that do not all share memory come to a group of NCCL, or all alike to none; and hosts of them to a hierarchy.
#include <algorithm>
#include <cstring>

#include "base/bytes.h"
#include "base/error.h"
#include "gpu/nccl/ranks.h"
#include "gpu/placement.h"

namespace ringdp::gpu {
namespace {

constexpr int64_t kLine = 128;  // bytes: what an epoch is aligned to

// Scratch of a quarter more than the window: what direct sums of a full one receive, and its odd packs.
ArenaLayout layout_of(int64_t window_bytes, int world) {
  ArenaLayout layout;
  layout.window = align_up(window_bytes, kLine);
  layout.stage = layout.window;
  layout.stage_bytes = align_up(window_bytes + window_bytes / 4 + NcclCommunicator::bytes_to_join(world), kLine);
  layout.epoch = layout.stage + layout.stage_bytes;
  layout.flags = layout.epoch + align_up(sizeof(Epoch), kLine);
  layout.bytes = layout.flags + align_up(HostShare::bytes_of_words(world), kLine);
  return layout;
}

// What a rank says after it has tried to join.
struct JoinVerdict {
  int32_t late = 0;        // 1: it has only waited, so another may know more
  char failure[252] = {};  // "": it has joined
};

// Of the first rank that says more than that it has waited, if one does.
std::string failure_of(const std::vector<std::string>& verdicts) {
  std::string failure;
  bool late = false;
  for (size_t rank = 0; rank < verdicts.size(); ++rank) {
    JoinVerdict verdict = told<JoinVerdict>(verdicts[rank]);
    end_text(verdict.failure);
    if (verdict.failure[0] == '\0' || (!failure.empty() && (!late || verdict.late))) continue;
    failure = "rank " + std::to_string(rank) + ": " + verdict.failure;
    late = verdict.late != 0;
  }
  return failure;
}

// Half of the time for joining: then all still can tell each other that it has failed.
Deadline half_of(Deadline whole) { return Deadline::after((whole.at() - Deadline::Clock::now()) / 2); }

}  // namespace

NcclRanks::NcclRanks(const Functions& functions, int device, const NcclSurroundings& surroundings)
    : functions_(functions),
      device_(device),
      rank_(surroundings.rank),
      world_(surroundings.world),
      wish_(surroundings.wish),
      layout_(layout_of(surroundings.window_bytes, surroundings.world)) {}

std::unique_ptr<NcclRanks> NcclRanks::meet(const Functions& functions, int device, const NcclSurroundings& surroundings) {
  std::unique_ptr<NcclRanks> ranks(new NcclRanks(functions, device, surroundings));
  const std::vector<NcclCard> cards = nccl_cards_from(surroundings.tell_all(to_bytes(ranks->offer(surroundings))));
  ranks->why_not_ = gpu::why_not(cards);
  if (ranks->why_not_.empty()) {
    ranks->why_not_ = failure_of(surroundings.tell_all(ranks->join(surroundings, cards[0].id)));
  }
  if (ranks->why_not_.empty()) {
    try {
      ranks->meet_hosts(surroundings);
    } catch (...) {
      ranks->give_up();  // NCCL is aborted: leaving would wait for the others
      throw;
    }
    return ranks;
  }
  if (ranks->communicator_) ranks->communicator_->abort();
  ranks->communicator_.reset();
  ranks->arena_.reset();
  return ranks;
}

// Who has joined NCCL has a device of its own, so that kernels which wait for the host's ranks run side by side (SPIN).
void NcclRanks::meet_hosts(const NcclSurroundings& surroundings) {
  if (wish_.hosts.empty()) return;
  HostTelling telling(surroundings.tell_all, wish_.hosts, rank_, world_);
  std::unique_ptr<Neighbourhood> host;
  std::string why = surroundings.why_not_on_host;
  if (why.empty()) {
    host = Neighbourhood::meet(functions_, device_, surroundings.on_host(telling));
    why = host->why_no_step();
    if (why.empty()) why = host->why_no_common_end();
  }
  why_no_hierarchy_ = telling.agree(why);
  if (why_no_hierarchy_.empty()) {
    char* const words = arena_->memory() + layout_.flags;
    share_ = std::make_unique<HostShare>(functions_, std::move(host), telling.first(), words);
    return;
  }
  wish_.hosts.clear();
  if (host) host->part();
  telling.agree("");  // importers close before exporters free
}

NcclCard NcclRanks::offer(const NcclSurroundings& surroundings) {
  try {
    NcclCard card = nccl_card_without("");
    require(functions_, functions_.nccl(surroundings.library.c_str(), &version_, &nccl_));
    if (nccl_ == nullptr) return nccl_card_without(functions_.error());
    load_kernels(functions_);
    arena_ = std::make_shared<Arena>(functions_, device_, layout_, RD_GPU_SHARE_AUTO);
    rd_gpu_device facts{};
    require(functions_, functions_.describe(device_, &facts));
    blocks_ = blocks_for(facts.multiprocessors, 1);
    std::memcpy(card.uuid, facts.uuid, sizeof card.uuid);
    card.version = version_;
    if (rank_ > 0) return card;
    if (const int result = nccl_->get_unique_id(&card.id); result != 0) {
      return nccl_card_without(std::string("ncclGetUniqueId: ") + nccl_->get_error_string(result));
    }
    return card;
  } catch (const Error& error) {
    return nccl_card_without(error.what());
  }
}

// The verdict. Who leaves because the group has failed says nothing more to anybody.
std::string NcclRanks::join(const NcclSurroundings& surroundings, const rd_gpu_nccl_id& id) {
  NcclCommunicator::Means means;
  means.functions = &functions_;
  means.stream = surroundings.stream;
  means.memory = arena_->memory() + layout_.stage;
  means.keeps = arena_;
  means.with_device = surroundings.with_device;
  means.still_there = surroundings.still_there;
  JoinVerdict verdict;
  try {
    communicator_ = NcclCommunicator::join({nccl_, id, rank_, world_}, means, half_of(surroundings.deadline));
  } catch (const NcclFailure& failure) {
    verdict.late = failure.late;
    put(verdict.failure, failure.what());
  }
  return to_bytes(verdict);
}

}  // namespace ringdp::gpu
