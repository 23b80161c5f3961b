#include "gpu/verdict.h"

namespace ringdp::gpu {

Verdict verdict_on(const std::vector<char*>& memory, const std::string& failure) {
  Verdict verdict;
  for (size_t rank = 0; rank < memory.size(); ++rank) {
    if (memory[rank] != nullptr) verdict.reached |= 1u << rank;
  }
  put(verdict.failure, failure);
  return verdict;
}

Verdicts verdicts_from(const std::vector<std::string>& bytes) {
  Verdicts all;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    Verdict verdict = told<Verdict>(bytes[rank]);
    end_text(verdict.failure);
    all.reached.push_back(verdict.reached);
    if (all.first_failure.empty() && verdict.failure[0] != '\0') {
      all.first_failure = "rank " + std::to_string(rank) + ": " + verdict.failure;
    }
  }
  return all;
}

std::vector<std::string> sockets_of(const std::vector<Card>& cards) {
  std::vector<std::string> names;
  for (const Card& card : cards) names.push_back(card.memory.needs_fd ? card.socket : "");
  return names;
}

}  // namespace ringdp::gpu
