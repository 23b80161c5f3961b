// A link plan as rounds: concurrent messages, then the steps that use them. For NCCL, whose sends and receives block
// each other and run in stream order.
//
// Rounds of the same number hold both ends of the same messages on all ranks, and nothing in a round depends on
// anything but earlier rounds; so ranks that run them in order never deadlock, however little NCCL buffers.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ringdp::plan {

struct LinkRound {
  std::vector<Step> messages;  // sends and receives, per peer in the order of its link, without empty ones
  std::vector<Step>
      steps;  // afterwards, in this order: folds, copies, encoding and decoding, barriers of a host's ranks
  std::vector<Step> ahead = {};  // before the messages of the first round: encodes what they send
};

// By number. InvalidArgument when a message depends on one of its own or a later round, as in pipelines that are longer
// than their window: larger segments make them shorter.
std::vector<LinkRound> rounds_of(const Plan& plan);

// "round 1: send 64 B to 2, receive 64 B from 0; fold 2 x 16", one line per round, after the steps `ahead`.
std::string text_of(const Plan& plan, const std::vector<LinkRound>& rounds);

}  // namespace ringdp::plan
