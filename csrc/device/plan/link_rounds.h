// A plan on links as rounds: what goes side by side, then what is done with it. For devices, whose sends and receives
// wait for each other and run in the order in which a stream was given them (NCCL).
//
// All ranks' rounds of the same number hold both ends of the same messages, and nothing in a round waits for anything
// but earlier rounds; so ranks that run them in order never wait in a circle, however little is buffered on the way.
#pragma once
#include <string>
#include <vector>

#include "plan/plan.h"

namespace ringdp::plan {

struct LinkRound {
  std::vector<Step> messages;  // sends and receives, of each peer in the order of its link; empty ones are left out
  std::vector<Step>
      steps;  // afterwards, in this order: folds, copies, encoding and decoding, meetings of a host's ranks
  std::vector<Step> ahead = {};  // in the first round, before its messages: encoding of what they send
};

// By number. InvalidArgument when a message would have to wait for another of its own round or a later one, as those of
// pipelines do that are longer than their window: larger segments make fewer of them.
std::vector<LinkRound> rounds_of(const Plan& plan);

// "round 1: send 64 B to 2, receive 64 B from 0; fold 2 x 16", a line for each; what is ahead comes first.
std::string text_of(const Plan& plan, const std::vector<LinkRound>& rounds);

}  // namespace ringdp::plan
