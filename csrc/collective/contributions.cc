#include "collective/contributions.h"

#include "base/error.h"
#include "kernels/checksum.h"

namespace ringdp::collective {

using plan::Form;
using plan::Ref;
using plan::Space;

ContributionReader::ContributionReader(const plan::Plan& plan, const std::vector<int>& members, Contributions& into)
    : plan_(plan), members_(members), into_(into) {
  into_ = {std::vector<uint64_t>(plan.world), std::vector<int64_t>(plan.world)};
  for (const plan::Channel& channel : plan.channels) {
    for (const plan::Step& step : channel.steps) {
      const bool brings = step.verb == plan::Verb::kRecv && step.dsts[0].space == Space::kScratch;
      if (brings) senders_[step.dsts[0].offset] = step.peer;
    }
  }
}

void ContributionReader::read(const Ref& ref, const void* at, int64_t count) {
  if (ref.form != Form::kRaw) return;
  const int rank = rank_of(ref);
  into_.sums[rank] += kernels::unordered_checksum(at, count, size_of(plan_.dtype));
  into_.elements[rank] += count;
}

void ContributionReader::wrote(const plan::Step& step, const void* at, int64_t count) {
  const Ref& to = step.dsts[0];
  // The result is what the rank that encodes it decodes, too.
  const bool adopts =
      step.verb == plan::Verb::kDecode && to.space == Space::kOutput && senders_.count(step.srcs[0].offset) == 0;
  if (to.form != Form::kRaw || !(step.finish || adopts)) return;
  into_.result += kernels::unordered_checksum(at, count, size_of(plan_.dtype));
  into_.result_elements += count;
}

int ContributionReader::rank_of(const Ref& ref) const {
  switch (ref.space) {
    case Space::kInput:
      return plan_.rank;
    case Space::kSlot:
    case Space::kPeerInput:
      return members_[ref.index];
    case Space::kScratch:  // raw values that arrive are the sender's contribution: partial sums travel wide
      if (const auto sender = senders_.find(ref.offset); sender != senders_.end()) return sender->second;
      break;
    default:
      break;
  }
  throw Error(ErrorKind::kInternal, "a " + plan_.algorithm + " plan sums raw values that no rank contributed");
}

}  // namespace ringdp::collective
