#include "comm/group_log.h"

#include <numeric>
#include <utility>

namespace ringdp::comm {
namespace {

using trace::Event;
using trace::Kind;

}  // namespace

int64_t bytes_of(const OpDesc& d, int world) {
  const auto sum = [](const std::vector<int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0});
  };
  const plan::Traits& traits = plan::traits_of(d.what);
  int64_t elements = traits.has_parts() ? d.count * world : d.count;
  if (!d.counts.empty()) elements = sum(d.counts);
  if (traits.has_splits()) elements = sum(d.sends);
  return elements * size_of(d.dtype);
}

GroupLog::GroupLog(trace::Recorder& recorder, const std::string& name, int rank, std::vector<int> members,
                   size_t in_flight)
    : recorder_(recorder),
      rank_(rank),
      world_(static_cast<int>(members.size())),
      number_(recorder.open({name, rank, std::move(members)})),
      delays_(world_),
      waits_(in_flight, -1) {}

Event GroupLog::event_of(Kind kind, const OpDesc& desc) const {
  Event event;
  event.kind = kind;
  event.dtype = desc.dtype;
  event.op = desc.op;
  event.group = number_;
  event.seq = desc.seq;
  return event;
}

void GroupLog::enqueued(const OpDesc& desc, int64_t now_ns) const {
  Event event = event_of(Kind::kEnqueued, desc);
  event.time_ns = now_ns;
  event.bytes = bytes_of(desc, world_);
  const plan::Traits& traits = plan::traits_of(desc.what);
  event.name = traits.name;
  if (traits.inputs == plan::Tensors::kPart) event.part = trace::Part::kInput;
  if (traits.outputs == plan::Tensors::kPart) event.part = trace::Part::kOutput;
  recorder_.note(event);
}

void GroupLog::waited(int64_t since_ns) const {
  Event event;
  event.kind = Kind::kWaited;
  event.group = number_;
  event.time_ns = trace::now_ns();
  event.ns = event.time_ns - since_ns;
  recorder_.note(event);
}

void GroupLog::started(const OpDesc& desc, int64_t now_ns) {
  Event event = event_of(Kind::kStarted, desc);
  event.time_ns = now_ns;
  recorder_.note(event);
  seq_ = desc.seq;
  started_ns_ = now_ns;
  is_first_look_ = true;
  missing_ = world_ - 1;
  algorithm_ = "";
  earlier_waits_.assign(world_, -1);
  earlier_waits_[rank_] = waited_ns(seq_);
  if (missing_ == 0) all_entered(rank_, now_ns);
}

void GroupLog::entered(int rank, const Remarks& theirs, int64_t now_ns) {
  earlier_waits_[rank] = theirs.waited_ns;
  if (--missing_ == 0) all_entered(is_first_look_ ? rank_ : rank, now_ns);
}

void GroupLog::all_entered(int last, int64_t now_ns) {
  delays_.add(trace::delay_of(earlier_waits_));
  Event event;
  event.kind = Kind::kArrived;
  event.group = number_;
  event.seq = seq_;
  event.peer = last;
  event.time_ns = now_ns;
  event.ns = waits_[seq_ % waits_.size()] = event.time_ns - started_ns_;
  recorder_.note(event);
}

void GroupLog::running(const std::string& algorithm) {
  if (algorithm != latest_algorithm_) latest_algorithm_ = trace::interned(algorithm);
  algorithm_ = latest_algorithm_;
}

void GroupLog::ended(const OpDesc& desc, const std::vector<collective::Backlog>& backlogs, bool failed) const {
  Event event = event_of(Kind::kBlocked, desc);
  for (size_t rank = 0; rank < backlogs.size(); ++rank) {
    if (backlogs[rank].ns == 0) continue;
    event.peer = static_cast<int32_t>(rank);
    event.bytes = backlogs[rank].bytes;
    event.ns = backlogs[rank].ns;
    recorder_.note(event);
  }
  event = event_of(failed ? Kind::kFailed : Kind::kFinished, desc);
  event.name = desc.seq == seq_ ? algorithm_ : "";
  recorder_.note(event);
}

}  // namespace ringdp::comm
