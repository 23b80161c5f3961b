#include "plan/leaf_tree.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace ringdp::plan {
namespace {

[[noreturn]] void refuse(const std::string& text) { throw Error(ErrorKind::kInvalidArgument, text); }

// `leaves` are sorted.
void add_roots(LeafNode node, const std::vector<int>& leaves, std::vector<LeafNode>& roots) {
  const auto first = std::lower_bound(leaves.begin(), leaves.end(), node.begin);
  const auto held = std::lower_bound(first, leaves.end(), node.end) - first;
  if (held == node.leaves()) {
    roots.push_back(node);
  } else if (held > 0) {
    add_roots(node.left(), leaves, roots);
    add_roots(node.right(), leaves, roots);
  }
}

// Returns how many parts it has added.
size_t add_to_program(LeafNode node, const std::vector<LeafNode>& parts, AddProgram& program) {
  const auto part = std::find(parts.begin(), parts.end(), node);
  if (part != parts.end()) {
    program.push_back(static_cast<int>(part - parts.begin()));
    return 1;
  }
  if (node.leaves() <= 1) refuse("add_program: no part has " + text_of(node));
  const size_t added = add_to_program(node.left(), parts, program) + add_to_program(node.right(), parts, program);
  program.push_back(kAdd);
  return added;
}

// The smallest subtree that is larger than `leaves` is cut in two; the first of several.
void cut_one(int leaves, std::vector<LeafNode>& free) {
  auto best = free.end();
  for (auto it = free.begin(); it != free.end(); ++it) {
    if (it->leaves() > leaves && (best == free.end() || it->leaves() < best->leaves())) best = it;
  }
  const LeafNode right = best->right();
  *best = best->left();
  free.insert(best + 1, right);
}

}  // namespace

std::string text_of(LeafNode node) {
  if (node.leaves() == 1) return "leaf " + std::to_string(node.begin);
  return "leaves " + std::to_string(node.begin) + "-" + std::to_string(node.end - 1);
}

std::vector<LeafNode> roots_of(int micro_batches, std::vector<int> leaves) {
  if (micro_batches < 1) refuse("micro_batches=" + std::to_string(micro_batches) + ", must be at least 1");
  std::sort(leaves.begin(), leaves.end());
  for (size_t i = 0; i < leaves.size(); ++i) {
    if (leaves[i] < 0 || leaves[i] >= micro_batches) {
      refuse("leaf " + std::to_string(leaves[i]) + ", must be one of 0 to " + std::to_string(micro_batches - 1));
    }
    if (i > 0 && leaves[i] == leaves[i - 1]) refuse("leaf " + std::to_string(leaves[i]) + " is there twice");
  }
  std::vector<LeafNode> roots;
  add_roots({0, micro_batches}, leaves, roots);
  return roots;
}

AddProgram add_program(LeafNode top, const std::vector<LeafNode>& parts) {
  AddProgram program;
  if (add_to_program(top, parts, program) != parts.size()) {
    refuse("add_program: some parts are not nodes of " + text_of(top) + ", or are there twice");
  }
  return program;
}

std::string text_of(const AddProgram& program) {
  std::string text;
  for (const int word : program) text += (text.empty() ? "" : " ") + (word == kAdd ? "+" : std::to_string(word));
  return text;
}

AddProgram program_of_ranks(int ranks) {
  std::vector<LeafNode> parts;
  for (int rank = 0; rank < ranks; ++rank) parts.push_back({rank, rank + 1});
  return add_program({0, ranks}, parts);
}

AddProgram Roots::program() const {
  std::vector<LeafNode> all;
  for (const auto& of_rank : by_rank) all.insert(all.end(), of_rank.begin(), of_rank.end());
  return add_program({0, micro_batches}, all);
}

std::vector<int64_t> Roots::numbers() const {
  std::vector<int64_t> numbers = {micro_batches};
  for (const auto& of_rank : by_rank) {
    numbers.push_back(static_cast<int64_t>(of_rank.size()));
    for (const LeafNode root : of_rank) numbers.insert(numbers.end(), {root.begin, root.end});
  }
  return numbers;
}

std::vector<std::vector<int>> allot(const std::vector<int>& shares) {
  for (const int share : shares) {
    if (share < 0) refuse("a share of " + std::to_string(share) + " leaves, must be 0 or more");
  }
  const int all = std::accumulate(shares.begin(), shares.end(), 0);
  if (all < 1) refuse("shares without a leaf: at least one is needed");
  std::vector<LeafNode> free = {{0, all}};
  std::vector<std::vector<int>> leaves(shares.size());
  std::vector<int> wanted = shares;
  for (;;) {
    const auto rank = std::max_element(wanted.begin(), wanted.end());  // the first one that needs most
    if (*rank == 0) break;
    auto largest = free.end();  // that fits
    bool may_cut = false;
    for (auto it = free.begin(); it != free.end(); ++it) {
      const bool fits = it->leaves() <= *rank;
      may_cut |= !fits;
      if (fits && (largest == free.end() || it->leaves() > largest->leaves())) largest = it;
    }
    if (may_cut && (largest == free.end() || 2 * largest->leaves() <= *rank)) {
      cut_one(*rank, free);
      continue;
    }
    auto& taken = leaves[rank - wanted.begin()];
    for (int leaf = largest->begin; leaf < largest->end; ++leaf) taken.push_back(leaf);
    *rank -= largest->leaves();
    free.erase(largest);
  }
  for (auto& of_rank : leaves) std::sort(of_rank.begin(), of_rank.end());
  return leaves;
}

std::vector<int> even_shares(int micro_batches, int ranks) {
  if (micro_batches < 1 || ranks < 1) {
    refuse(std::to_string(micro_batches) + " micro-batches on " + std::to_string(ranks) +
           " ranks: both must be at least 1");
  }
  std::vector<int> shares(ranks, micro_batches / ranks);
  for (int rank = 0; rank < micro_batches % ranks; ++rank) ++shares[rank];
  return shares;
}

}  // namespace ringdp::plan
