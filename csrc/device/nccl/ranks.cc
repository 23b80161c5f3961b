#include "device/nccl/ranks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/bytes.h"
#include "base/error.h"
#include "device/kernel/work.h"
#include "device/nccl/fold_work.h"
#include "device/runtime/placement.h"

namespace ringdp::gpu {
namespace {

// NCCL reports a dead rank's connection at once, but only the group can name the rank, which takes it up to a second.
constexpr std::chrono::seconds kGroupKnows{2};

int64_t scratch_of(const plan::Plan& plan) {
  int64_t spare = 0;
  for (const plan::Channel& channel : plan.channels) {
    for (const plan::Step& step : channel.steps) spare = std::max(spare, spare_bytes(plan, step));
  }
  return plan.scratch_bytes + spare;
}

// The end of sums().
std::string encoding_of(const plan::LinkSettings& link_settings) {
  if (link_settings.wire == WireType::kFp32) return "";
  const std::string bytes = std::to_string(encoded_bytes(link_settings.wire, kWireBlock));
  return std::string("; wider floats travel as ") + name_of(link_settings.wire) + ": " + bytes + " bytes for " +
         std::to_string(kWireBlock) + " elements";
}

// Whether it is the first message of its round with this peer and direction; both ends agree on that.
bool is_first_of_its_kind(const std::vector<plan::Step>& messages, size_t number) {
  const auto is_alike = [&](const plan::Step& step) {
    return step.verb == messages[number].verb && step.peer == messages[number].peer;
  };
  return std::none_of(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(number), is_alike);
}

// "2.29.7" of 22907.
std::string text_of_version(int version) {
  const auto part = [version](int unit) { return std::to_string(version / unit % 100); };
  return part(10000) + "." + part(100) + "." + part(1);
}

constexpr int64_t kLine = 128;  // bytes: the alignment of the parts

// Scratch is a quarter larger than the window, for what direct sums of a full window receive, and its padding.
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

// What a rank reports after it has tried to join.
struct JoinReport {
  int32_t late = 0;        // 1: it reached the deadline, so another rank may know the cause
  char failure[252] = {};  // "": it has joined
};

// The failure of the first rank that did not just reach the deadline, else of the first that did, else "".
std::string failure_of(const std::vector<std::string>& reports) {
  std::string failure;
  bool late = false;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    JoinReport report = from_bytes<JoinReport>(reports[rank]);
    end_text(report.failure);
    if (report.failure[0] == '\0' || (!failure.empty() && (!late || report.late))) continue;
    failure = "rank " + std::to_string(rank) + ": " + report.failure;
    late = report.late != 0;
  }
  return failure;
}

// Joining gets half of the time, so that afterwards all ranks can still tell each other that it failed.
Deadline half_of(Deadline whole) { return Deadline::after((whole.at() - Deadline::Clock::now()) / 2); }

}  // namespace

NcclRanks::~NcclRanks() { teardown(); }

std::string NcclRanks::description() const {
  if (!why_not_.empty()) return "collectives run on the host: " + why_not_;
  plan::Problem sum;
  sum.world = world_;
  const std::string start =
      "NCCL " + text_of_version(version_) + ": a device for each of " + std::to_string(world_) + " ranks, ";
  const std::string how =
      share_ ? "which share memory within each of " + std::to_string(link_settings_.hosts.size()) + " hosts; "
             : "which share no memory; ";
  const std::string why = why_no_link_plan(link_settings_, sum);
  return start + how + (why.empty() ? sums() : "sums on the host, as " + why) +
         (why_no_hierarchy_.empty() ? "" : "; no hierarchy on devices: " + why_no_hierarchy_);
}

std::string NcclRanks::sums() const {
  plan::Problem sum;
  sum.world = world_;
  const auto by = [&] {
    const plan::DeviceChoice choice = choose(sum);
    return std::string("by ") + name_of(choice.algorithm) + " (" + choice.why + ")";
  };
  const std::string end =
      ", in our kernels of up to " + std::to_string(blocks_) + " blocks" + encoding_of(link_settings_);
  if (!share_) return "sums " + by() + end;
  std::string text = "all_reduces ";
  if (link_settings_.hierarchy_beyond >= 0)
    text += "of more than " + std::to_string(link_settings_.hierarchy_beyond) + " bytes ";
  sum.count = link_settings_.hierarchy_beyond + 1;
  text += by();
  sum.what = plan::Collective::kReduceScatter;
  return text + ", other sums " + by() + end;
}

std::string NcclRanks::why_not(const plan::Problem& problem) const {
  if (!why_not_.empty()) return why_not_;
  const std::string why = why_no_link_plan(link_settings_, problem);
  if (!why.empty() || !plan::is_reduction(problem.what)) return why;
  int reduces = 0;
  require(functions_, functions_.reduces(static_cast<int>(problem.dtype), static_cast<int>(problem.op), &reduces));
  if (reduces) return "";
  return std::string("no kernel for ") + name_of(problem.op) + " on " + name_of(problem.dtype);
}

plan::DeviceChoice NcclRanks::choose(const plan::Problem& problem) const {
  return select_link_plan(link_settings_, problem);
}

Pieces NcclRanks::cut(const plan::Problem& problem) const {
  const plan::DeviceAlgorithm algorithm = choose(problem).algorithm;
  const int64_t block = plan::travels_encoded(link_settings_, problem) ? kWireBlock : 0;
  const auto stage_of = [&](const plan::Problem& piece) { return *scratch_bytes_.plan_for(algorithm, piece); };
  return gpu::cut(stage_of, problem, {layout_.window, layout_.stage_bytes, block});
}

Launched NcclRanks::launch(const Piece& piece, const plan::DeviceChoice& choice, void* stream) {
  const std::shared_ptr<const LinkPlan> made = plans_.plan_for(choice.algorithm, piece.problem);
  const plan::Plan& plan = made->plan;
  Launched meeting;
  bool words_came = false;  // since the last look at them
  for (const plan::LinkRound& round : made->rounds) {
    for (const plan::Step& step : round.ahead) run(plan, step, piece, stream);
    if (!round.messages.empty()) words_came = exchange(plan, round, piece, stream);
    for (const plan::Step& step : round.steps) {
      if (step.verb != plan::Verb::kWait) {
        run(plan, step, piece, stream);
        continue;
      }
      if (std::exchange(words_came, false)) share_->pass_abort_on(stream);
      meeting = share_->barrier(/*last=*/meeting.plan != nullptr, piece.deadline_ns, stream);
    }
  }
  if (words_came) share_->pass_abort_on(stream);
  return meeting;
}

bool NcclRanks::exchange(const plan::Plan& plan, const plan::LinkRound& round, const Piece& piece, void* stream) {
  if (aborted()) return false;
  std::vector<NcclCommunicator::Message> messages;
  bool words_come = false;
  for (size_t k = 0; k < round.messages.size(); ++k) {
    const plan::Step& step = round.messages[k];
    const bool sends = step.verb == plan::Verb::kSend;
    const plan::Ref& ref = sends ? step.srcs[0] : step.dsts[0];
    messages.push_back({sends, address_of(plan, ref, piece), bytes_of(plan, ref), step.peer});
    if (!share_ || !is_first_of_its_kind(round.messages, k)) continue;
    char* const word = sends ? share_->own_word() : share_->word(step.peer);
    messages.push_back({sends, word, HostShare::kWordBytes, step.peer});
    words_come |= !sends;
  }
  if (share_) share_->pass_abort_on(stream);
  const std::string error = communicator_->exchange(messages, stream);
  if (error.empty()) return words_come;
  abort();  // before the host releases the results
  const std::lock_guard lock(mutex_);
  if (refusal_.empty()) refusal_ = error;
  return words_come;
}

// A signal needs no work here: kWait launches the whole barrier.
void NcclRanks::run(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  if (step.verb == plan::Verb::kArrive) return;
  if (only_rounds(plan, step)) return round(plan, step, piece, stream);
  if (step.verb == plan::Verb::kFold) return fold(plan, step, piece, stream);
  if (step.verb != plan::Verb::kCopy) return recode(plan, step, piece, stream);
  char* const from = address_of(plan, step.srcs[0], piece);
  char* const to = address_of(plan, step.dsts[0], piece);
  const int64_t bytes = bytes_of(plan, step.srcs[0]);
  if (from != to && bytes > 0) require(functions_, functions_.copy(to, from, static_cast<size_t>(bytes), stream));
}

void NcclRanks::fold(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  Fold fold = fold_of(plan, step, [&](const plan::Ref& ref) { return address_of(plan, ref, piece); });
  fold.spare = arena_->memory() + layout_.stage + plan.scratch_bytes;
  Work work = work_of(fold);
  work.blocks = blocks_of(fold.count / plan::pack_elements(fold.dtype), blocks_);
  work.epoch = reinterpret_cast<Epoch*>(arena_->memory() + layout_.epoch);
  work.deadline_ns = std::max<uint64_t>(piece.deadline_ns, 1);
  work.divisor = step.finish ? piece.divisor : 0;
  work.abort = abort_on_device();
  work.expired = arena_->expired_on_device();
  require(functions_, functions_.run(&work, sizeof work, static_cast<int>(fold.dtype), static_cast<int>(plan.op),
                                     RD_GPU_SPIN, stream));
}

// The parts of a piece are contiguous in the window, see device/runtime/pieces.h.
char* NcclRanks::address_of(const plan::Plan& plan, const plan::Ref& ref, const Piece& piece) const {
  const int64_t part = ref.index * Pieces::padded_bytes(piece.problem.count, plan.dtype);
  switch (ref.space) {
    case plan::Space::kInput:
      return window() + piece.input_at + part + ref.offset;
    case plan::Space::kOutput:
      return window() + piece.output_at + part + ref.offset;
    case plan::Space::kPeerInput:
      return share_->window(ref.index) + piece.input_at + ref.offset;
    case plan::Space::kPeerOutput:
      return share_->window(ref.index) + piece.output_at + ref.offset;
    default:
      return arena_->memory() + layout_.stage + ref.offset;
  }
}

void NcclRanks::mark_turn(uint32_t number, void* stream) const {
  require(functions_, functions_.write(&arena_->signals().turn, number, stream));
}

uint32_t NcclRanks::turn() const { return __atomic_load_n(&arena_->signals().turn, __ATOMIC_ACQUIRE); }

void NcclRanks::await_release(uint32_t number, void* stream) const {
  require(functions_, functions_.await(&arena_->signals().released, number, stream));
}

void NcclRanks::poison(void* memory, int64_t bytes, void* stream) const {
  require(functions_, functions_.poison(memory, static_cast<size_t>(bytes), abort_on_device(), stream));
}

void NcclRanks::deliver(void* to, const void* from, int64_t bytes, void* stream) const {
  require(functions_, functions_.deliver(to, from, static_cast<size_t>(bytes), abort_on_device(), stream));
}

// One word, whichever aborts first: a rank of this host, a kernel, or a received abort word.
uint32_t* NcclRanks::abort_on_device() const {
  return share_ ? share_->host().abort_on_device() : arena_->abort_on_device();
}

void NcclRanks::release(uint32_t number) { __atomic_store_n(&arena_->signals().released, number, __ATOMIC_RELEASE); }

void NcclRanks::abort() {
  if (share_) return share_->host().abort();
  __atomic_store_n(&arena_->signals().abort, 1u, __ATOMIC_RELEASE);
}

bool NcclRanks::aborted() const {
  return share_ ? share_->host().aborted() : __atomic_load_n(&arena_->signals().abort, __ATOMIC_ACQUIRE) != 0;
}

std::string NcclRanks::poll() {
  const std::lock_guard lock(mutex_);
  if (!communicator_) return refusal_;
  if (aborted()) {
    if (!aborting_) ending_ = std::thread([this, own = communicator_.get()] { own->abort_on(with_device_); });
    aborting_ = true;
    return refusal_;
  }
  const std::string failure = communicator_->failure();
  if (failure.empty()) return "";
  if (!failing_) failing_since_ = Deadline::Clock::now();
  failing_ = true;
  return Deadline::Clock::now() - failing_since_ < kGroupKnows ? "" : failure;
}

// Other threads may still poll().
void NcclRanks::teardown() {
  std::unique_ptr<NcclCommunicator> communicator;
  std::thread ending;
  {
    const std::lock_guard lock(mutex_);
    communicator = std::move(communicator_);
    ending = std::move(ending_);
  }
  if (ending.joinable()) ending.join();
  if (communicator) aborted() ? communicator->abort() : communicator->leave();
  if (share_) share_->host().teardown();
}

// Steps of plans whose sums are sent encoded.

void NcclRanks::recode(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  const plan::Ref &from = step.srcs[0], &to = step.dsts[0];
  CodecWork work = {address_of(plan, from, piece), address_of(plan, to, piece), to.count, to.count, {}, plan.wire, {}};
  work.encodes = step.verb == plan::Verb::kEncode;
  work.element = (work.encodes ? from : to).form == plan::Form::kWide ? wide_of(plan.dtype) : plan.dtype;
  if (from.space == plan::Space::kInput && !piece.held.empty()) {
    const int64_t held = piece.held.at(static_cast<size_t>(from.index)) - from.offset / size_of(plan.dtype);
    work.held = std::clamp<int64_t>(held, 0, from.count);
  }
  require(functions_, functions_.recode(&work, sizeof work, stream));
}

// Divides in place, then rounds by encoding: the tensor's type has the bits of a wire type.
void NcclRanks::round(const plan::Plan& plan, const plan::Step& step, const Piece& piece, void* stream) {
  const plan::Ref &sum = step.srcs[0], &result = step.dsts[0];
  plan::Step divides = step;
  divides.dsts = {sum};
  if (piece.divisor != 0) fold(plan, divides, piece, stream);
  CodecWork work = {address_of(plan, sum, piece), address_of(plan, result, piece), sum.count, sum.count, {}, {}, true};
  work.element = wide_of(plan.dtype);
  work.wire = plan.dtype == DType::kF16 ? WireType::kFp16 : WireType::kBf16;
  require(functions_, functions_.recode(&work, sizeof work, stream));
}

// How ranks join an NCCL communicator, or all of them none; and then their hosts a hierarchy.

NcclRanks::NcclRanks(const Functions& functions, int device, const NcclBootstrapContext& context)
    : functions_(functions),
      device_(device),
      rank_(context.rank),
      world_(context.world),
      link_settings_(context.link_settings),
      layout_(layout_of(context.window_bytes, context.world)),
      with_device_(context.with_device),
      plans_([this](plan::DeviceAlgorithm algorithm, const plan::Problem& problem) -> LinkPlan {
        LinkPlan made = {plan::make_link_plan(algorithm, problem, link_settings_), {}};
        made.rounds = plan::rounds_of(made.plan);
        made.plan.channels.clear();  // the rounds have their steps
        return made;
      }),
      scratch_bytes_([this](plan::DeviceAlgorithm algorithm, plan::Problem problem) {
        int64_t most = 0;
        for (const int rank : plan::ranks_with_most_scratch(problem, link_settings_)) {
          problem.rank = rank;
          most = std::max(most, scratch_of(plan::make_link_plan(algorithm, problem, link_settings_)));
        }
        return most;
      }) {}

std::unique_ptr<NcclRanks> NcclRanks::bootstrap(const Functions& functions, int device,
                                                const NcclBootstrapContext& context) {
  std::unique_ptr<NcclRanks> ranks(new NcclRanks(functions, device, context));
  const std::vector<NcclPeerInfo> infos = nccl_peer_infos_from(context.all_gather(to_bytes(ranks->offer(context))));
  ranks->why_not_ = gpu::why_not(infos);
  if (ranks->why_not_.empty()) {
    ranks->why_not_ = failure_of(context.all_gather(ranks->join(context, infos[0].id)));
  }
  if (ranks->why_not_.empty()) {
    try {
      ranks->bootstrap_hosts(context);
    } catch (...) {
      ranks->abort();  // abort, because leaving would wait for the peers
      throw;
    }
    return ranks;
  }
  if (ranks->communicator_) ranks->communicator_->abort();
  ranks->communicator_.reset();
  ranks->arena_.reset();
  return ranks;
}

// Ranks that have joined NCCL have a device each, so kernels that wait for each other run at the same time (SPIN).
void NcclRanks::bootstrap_hosts(const NcclBootstrapContext& context) {
  if (link_settings_.hosts.empty()) return;
  HostAllGather gather(context.all_gather, link_settings_.hosts, rank_, world_);
  std::unique_ptr<PeerMemory> host;
  std::string why = context.why_not_on_host;
  if (why.empty()) {
    host = PeerMemory::bootstrap(functions_, device_, context.on_host(gather));
    why = host->why_no_step();
    if (why.empty()) why = host->why_no_common_end();
  }
  why_no_hierarchy_ = gather.agree(why);
  if (why_no_hierarchy_.empty()) {
    char* const words = arena_->memory() + layout_.flags;
    share_ = std::make_unique<HostShare>(functions_, std::move(host), gather.first(), world_, words);
    return;
  }
  link_settings_.hosts.clear();
  if (host) host->teardown();
  gather.agree("");  // importers close before exporters free
}

NcclPeerInfo NcclRanks::offer(const NcclBootstrapContext& context) {
  try {
    NcclPeerInfo info = nccl_peer_info_without("");
    require(functions_, functions_.nccl(context.library.c_str(), &version_, &nccl_));
    if (nccl_ == nullptr) return nccl_peer_info_without(functions_.error());
    load_kernels(functions_);
    arena_ = std::make_shared<Arena>(functions_, device_, layout_, RD_GPU_SHARE_AUTO);
    rd_gpu_device facts{};
    require(functions_, functions_.describe(device_, &facts));
    blocks_ = context.most_blocks > 0 ? context.most_blocks : blocks_for(facts.multiprocessors, 1);
    std::memcpy(info.uuid, facts.uuid, sizeof info.uuid);
    info.version = version_;
    if (rank_ > 0) return info;
    if (const int result = nccl_->get_unique_id(&info.id); result != 0) {
      return nccl_peer_info_without(std::string("ncclGetUniqueId: ") + nccl_->get_error_string(result));
    }
    return info;
  } catch (const Error& error) {
    return nccl_peer_info_without(error.what());
  }
}

// Returns the JoinReport. A rank whose group has failed throws instead, and reports nothing.
std::string NcclRanks::join(const NcclBootstrapContext& context, const rd_gpu_nccl_id& id) {
  NcclCommunicator::Means means;
  means.functions = &functions_;
  means.stream = context.stream;
  means.memory = arena_->memory() + layout_.stage;
  means.keeps = arena_;
  means.with_device = context.with_device;
  means.still_there = context.still_there;
  JoinReport report;
  try {
    communicator_ = NcclCommunicator::join({nccl_, id, rank_, world_}, means, half_of(context.deadline));
  } catch (const NcclFailure& failure) {
    report.late = failure.late;
    put(report.failure, failure.what());
  }
  return to_bytes(report);
}

}  // namespace ringdp::gpu
