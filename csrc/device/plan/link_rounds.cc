#include "device/plan/link_rounds.h"

#include <algorithm>

#include "base/error.h"
#include "plan/validate.h"

namespace ringdp::plan {
namespace {

constexpr int kUnknown = -2;
constexpr int kBefore = -1;  // all rounds

bool is_recoding(const Step& step) { return step.verb == Verb::kEncode || step.verb == Verb::kDecode; }
bool is_meeting(const Step& step) { return step.verb == Verb::kArrive || step.verb == Verb::kWait; }

// Verbs over an arena, which these devices do not have.
bool uses_slots(const Step& step) {
  const auto is_slot = [](const Ref& ref) { return ref.space == Space::kSlot; };
  return std::any_of(step.srcs.begin(), step.srcs.end(), is_slot) ||
         std::any_of(step.dsts.begin(), step.dsts.end(), is_slot);
}

bool is_message(const Step& step) { return step.verb == Verb::kSend || step.verb == Verb::kRecv; }

const Ref& what_moves(const Step& step) { return step.verb == Verb::kSend ? step.srcs[0] : step.dsts[0]; }

const Ref& moved_by(const Step& step) { return is_message(step) ? what_moves(step) : step.srcs[0]; }

std::string words_of(const Plan& plan, const Step& step) {
  const std::string bytes = std::to_string(is_meeting(step) ? 0 : bytes_of(plan, moved_by(step)));
  switch (step.verb) {
    case Verb::kSend:
      return "send " + bytes + " B to " + std::to_string(step.peer);
    case Verb::kRecv:
      return "receive " + bytes + " B from " + std::to_string(step.peer);
    case Verb::kCopy:
      return "copy " + bytes + " B";
    case Verb::kEncode:
      return "encode " + std::to_string(step.srcs[0].count);
    case Verb::kDecode:
      return "decode " + std::to_string(step.dsts[0].count);
    case Verb::kArrive:
      return "arrive";
    case Verb::kWait:
      return "await the host's ranks";
    default:
      return "fold " + std::to_string(step.srcs.size()) + " x " + std::to_string(step.dsts[0].count);
  }
}

class Rounds {
 public:
  explicit Rounds(const Plan& plan) : plan_(plan), when_(plan.channels.size()) {}

  std::vector<LinkRound> build() {
    for (bool moved = true; moved;) {
      moved = false;
      for (size_t channel = 0; channel < when_.size(); ++channel) {
        while (advance(channel)) moved = true;
      }
    }
    for (size_t channel = 0; channel < when_.size(); ++channel) {
      if (when_[channel].size() == plan_.channels[channel].steps.size()) continue;
      throw Error(ErrorKind::kInternal,
                  plan_.algorithm + ": steps of channel " + std::to_string(channel) + " wait in a circle");
    }
    return std::move(rounds_);
  }

 private:
  // Assigns the channel's next step to a round, once everything that it waits for has one.
  bool advance(size_t channel) {
    const std::vector<Step>& steps = plan_.channels[channel].steps;
    if (when_[channel].size() == steps.size()) return false;
    const Step& step = steps[when_[channel].size()];
    const int ready = ready_after(step);
    if (ready == kUnknown) return false;
    const int before = when_[channel].empty() ? kBefore : when_[channel].back();
    const bool follows_message = !when_[channel].empty() && is_message(steps[when_[channel].size() - 1]);
    when_[channel].push_back(is_message(step) ? place_message(step, std::max(ready, before - follows_message) + 1)
                                              : place_step(step, std::max(ready, before)));
    return true;
  }

  // The last round among the steps that this one waits for.
  int ready_after(const Step& step) const {
    int last = kBefore;
    for (const After& after : step.after) {
      const std::vector<int>& known = when_[static_cast<size_t>(after.channel)];
      if (after.steps == 0) continue;
      if (known.size() < static_cast<size_t>(after.steps)) return kUnknown;
      last = std::max(last, known[static_cast<size_t>(after.steps) - 1]);
    }
    return last;
  }

  LinkRound& round(int number) {
    rounds_.resize(std::max(rounds_.size(), static_cast<size_t>(number) + 1));
    return rounds_[static_cast<size_t>(number)];
  }

  int place_message(const Step& step, int earliest) {
    require(step.round >= earliest, plan_.algorithm + " has no order of rounds: a message of round " +
                                        std::to_string(step.round) + " waits for round " +
                                        std::to_string(earliest - 1) + "; use larger segments");
    if (what_moves(step).count > 0) round(step.round).messages.push_back(step);
    return step.round;
  }

  // Steps that need no message go into the first round, or before it when messages send what they make.
  int place_step(const Step& step, int number) {
    const bool computes = step.verb == Verb::kFold || step.verb == Verb::kCopy || is_recoding(step);
    require((computes || is_meeting(step)) && !uses_slots(step),
            plan_.algorithm + " has steps that devices do not run over links");
    if (number == kBefore && is_recoding(step)) {
      round(0).ahead.push_back(step);
      return kBefore;
    }
    round(std::max(number, 0)).steps.push_back(step);
    return std::max(number, 0);
  }

  const Plan& plan_;
  std::vector<std::vector<int>> when_;  // by channel and step: its round
  std::vector<LinkRound> rounds_;
};

}  // namespace

std::vector<LinkRound> rounds_of(const Plan& plan) { return Rounds(plan).build(); }

std::string text_of(const Plan& plan, const std::vector<LinkRound>& rounds) {
  std::string text;
  for (size_t number = 0; number < rounds.size(); ++number) {
    std::string line;
    const auto tell = [&](const std::vector<Step>& steps, const char* between) {
      for (size_t k = 0; k < steps.size(); ++k) {
        line += (line.empty() ? "" : k == 0 ? "; " : between) + words_of(plan, steps[k]);
      }
    };
    tell(rounds[number].ahead, "; ");
    tell(rounds[number].messages, ", ");
    tell(rounds[number].steps, "; ");
    text += "round " + std::to_string(number) + ": " + line + "\n";
  }
  return text;
}

}  // namespace ringdp::plan
