// The tree of additions over the micro-batches of a step (leaves), by which a sum does not depend on who adds up what.
//
// tree(begin, end) is the gradient of leaf `begin` if there is one leaf, else tree(begin, middle) + tree(middle, end);
// the left half gets the odd leaf. The roots of a set of leaves are the largest nodes of the tree all of whose leaves
// are in the set. A rank adds up the roots of its leaves, and the roots of all ranks are added up along the same tree:
// the same additions, and the same bits, for every allotment of leaves to any number of ranks.
#pragma once
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace ringdp::plan {

// The leaves begin..end-1.
struct LeafNode {
  int begin = 0, end = 0;

  int leaves() const { return end - begin; }
  int middle() const { return begin + (leaves() + 1) / 2; }
  LeafNode left() const { return {begin, middle()}; }
  LeafNode right() const { return {middle(), end}; }
  bool contains(LeafNode other) const { return begin <= other.begin && other.end <= end; }
  auto operator<=>(const LeafNode&) const = default;
};

std::string text_of(LeafNode node);  // "leaf 3" or "leaves 4-7"

// The roots of a set of leaves, given in any order, in a tree of `micro_batches` leaves; in the order of leaves.
// InvalidArgument: micro_batches below 1; a leaf that is none of 0..micro_batches-1, or there twice.
std::vector<LeafNode> roots_of(int micro_batches, std::vector<int> leaves);

// How to add up parts to the node that they make up, in postfix form: a number pushes the part of that index, kAdd
// replaces the two sums on top of the stack by left + right. InvalidArgument if `parts` are not nodes below `top` that
// have each of its leaves once.
constexpr int kAdd = -1;
using AddProgram = std::vector<int>;
AddProgram add_program(LeafNode top, const std::vector<LeafNode>& parts);
std::string text_of(const AddProgram& program);  // "0 1 + 2 +"

// That of the tree whose leaves are the ranks. For up to three ranks it adds up in rank order.
AddProgram program_of_ranks(int ranks);

// The roots that each rank contributes to a sum, one tensor each. Equal on all ranks.
struct Roots {
  int micro_batches = 0;
  std::vector<std::vector<LeafNode>> by_rank;

  // Over the roots of all ranks, rank by rank. InvalidArgument unless together they have each leaf once.
  AddProgram program() const;
  std::vector<int64_t> numbers() const;  // that tell it from any other
};
using RootsPtr = std::shared_ptr<const Roots>;

// Which leaves each rank runs if rank r is to run shares[r] of them: whole subtrees where possible, so that ranks have
// few roots. Any other allotment has the same bits. InvalidArgument: a share below 0, or no leaf at all.
std::vector<std::vector<int>> allot(const std::vector<int>& shares);
std::vector<int> even_shares(int micro_batches, int ranks);  // the first ranks get one leaf more than the last ones

}  // namespace ringdp::plan
