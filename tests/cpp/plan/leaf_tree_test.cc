// The tree of leaves against its definition, read literally on expressions that are text.
#include "plan/leaf_tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"

namespace ringdp::plan {
namespace {

// "((0+1)+2)": what is added to what.
std::string definition(int begin, int end) {
  if (end - begin == 1) return std::to_string(begin);
  const int middle = begin + static_cast<int>(std::ceil((end - begin) / 2.0));
  return "(" + definition(begin, middle) + "+" + definition(middle, end) + ")";
}

std::string run(const AddProgram& program, const std::vector<std::string>& parts) {
  std::vector<std::string> stack;
  for (const int word : program) {
    if (word != kAdd) {
      stack.push_back(parts.at(word));
      continue;
    }
    const std::string right = stack.back();
    stack.pop_back();
    stack.back() = "(" + stack.back() + "+" + right + ")";
  }
  EXPECT_EQ(stack.size(), 1u);
  return stack.front();
}

// All nodes of the tree, from the definition.
void collect(int begin, int end, std::set<LeafNode>& nodes) {
  nodes.insert({begin, end});
  if (end - begin == 1) return;
  const int middle = end - (end - begin) / 2;
  collect(begin, middle, nodes);
  collect(middle, end, nodes);
}

std::vector<LeafNode> largest_nodes_within(int micro_batches, const std::set<int>& leaves) {
  std::set<LeafNode> nodes, within;
  collect(0, micro_batches, nodes);
  for (const LeafNode& node : nodes) {
    bool all = true;
    for (int leaf = node.begin; leaf < node.end; ++leaf) all &= leaves.count(leaf) == 1;
    if (all) within.insert(node);
  }
  std::vector<LeafNode> largest;
  for (const LeafNode& node : within) {
    const auto holds = [&](const LeafNode& other) { return other != node && other.contains(node); };
    if (std::none_of(within.begin(), within.end(), holds)) largest.push_back(node);
  }
  return largest;
}

std::vector<std::vector<int>> dealt(int micro_batches, int ranks, std::mt19937& random) {
  std::vector<std::vector<int>> leaves(ranks);
  for (int leaf = 0; leaf < micro_batches; ++leaf) leaves[random() % ranks].push_back(leaf);
  for (auto& of_rank : leaves) std::shuffle(of_rank.begin(), of_rank.end(), random);
  return leaves;
}

TEST(LeafTree, TheRootsOfAllRanksAddUpToTheDefinition) {
  std::mt19937 random(5);
  for (int micro_batches = 1; micro_batches <= 40; ++micro_batches) {
    const LeafNode whole = {0, micro_batches};
    for (int ranks = 1; ranks <= 9; ++ranks) {
      for (const auto& leaves : {allot(even_shares(micro_batches, ranks)), dealt(micro_batches, ranks, random)}) {
        std::vector<LeafNode> roots;
        std::vector<std::string> sums;
        for (const auto& of_rank : leaves) {
          const auto own = roots_of(micro_batches, of_rank);
          ASSERT_EQ(own, largest_nodes_within(micro_batches, {of_rank.begin(), of_rank.end()}));
          for (const LeafNode& root : own) sums.push_back(definition(root.begin, root.end));
          roots.insert(roots.end(), own.begin(), own.end());
        }
        ASSERT_EQ(run(add_program(whole, roots), sums), definition(0, micro_batches)) << micro_batches << " " << ranks;
      }
    }
  }
}

// A rank that adds a leaf to what it holds as soon as it can never holds more than the roots of what it has.
TEST(LeafTree, LeavesInAnyOrderMergeToTheRoots) {
  std::mt19937 random(6);
  for (int micro_batches = 1; micro_batches <= 33; ++micro_batches) {
    std::vector<int> order(micro_batches);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<LeafNode> held;
    for (int count = 1; count <= micro_batches; ++count) {
      const int leaf = order[count - 1];
      const auto roots = roots_of(micro_batches, {order.begin(), order.begin() + count});
      const auto root = std::find_if(roots.begin(), roots.end(), [&](LeafNode r) {
        return r.contains({leaf, leaf + 1});
      });
      ASSERT_NE(root, roots.end());
      std::vector<LeafNode> parts = {{leaf, leaf + 1}};
      std::copy_if(held.begin(), held.end(), std::back_inserter(parts), [&](LeafNode h) { return root->contains(h); });
      std::vector<std::string> sums;
      for (const LeafNode& part : parts) sums.push_back(definition(part.begin, part.end));
      ASSERT_EQ(run(add_program(*root, parts), sums), definition(root->begin, root->end));
      held = roots;
    }
    ASSERT_EQ(held, (std::vector<LeafNode>{{0, micro_batches}}));
  }
}

TEST(LeafTree, SharesAreMetWithFewRoots) {
  for (int micro_batches = 1; micro_batches <= 64; ++micro_batches) {
    for (int ranks = 1; ranks <= 16; ++ranks) {
      const auto shares = even_shares(micro_batches, ranks);
      const auto leaves = allot(shares);
      std::vector<int> all;
      for (int rank = 0; rank < ranks; ++rank) {
        ASSERT_EQ(static_cast<int>(leaves[rank].size()), shares[rank]);
        ASSERT_TRUE(std::is_sorted(leaves[rank].begin(), leaves[rank].end()));
        all.insert(all.end(), leaves[rank].begin(), leaves[rank].end());
        if ((ranks & (ranks - 1)) == 0 && micro_batches % ranks == 0) {
          ASSERT_EQ(roots_of(micro_batches, leaves[rank]).size(), 1u);
        }
      }
      std::sort(all.begin(), all.end());
      for (int leaf = 0; leaf < micro_batches; ++leaf) ASSERT_EQ(all[leaf], leaf);
    }
  }
  EXPECT_EQ(allot({6, 2, 0}), (std::vector<std::vector<int>>{{0, 1, 2, 3, 4, 5}, {6, 7}, {}}));
}

TEST(LeafTree, CanBePrinted) {
  EXPECT_EQ(text_of(LeafNode{3, 4}), "leaf 3");
  EXPECT_EQ(text_of(LeafNode{4, 8}), "leaves 4-7");
  EXPECT_EQ(text_of(add_program({0, 5}, {{0, 2}, {2, 3}, {3, 5}})), "0 1 + 2 +");
}

TEST(LeafTree, RefusesWhatIsNoTree) {
  const auto said = [](const std::function<void()>& call) -> std::string {
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "nothing";
  };
  EXPECT_EQ(said([] { roots_of(0, {}); }), "micro_batches=0, must be at least 1");
  EXPECT_EQ(said([] { roots_of(4, {1, 4}); }), "leaf 4, must be one of 0 to 3");
  EXPECT_EQ(said([] { roots_of(4, {2, 1, 2}); }), "leaf 2 is there twice");
  EXPECT_EQ(said([] { add_program({0, 4}, {{0, 2}, {3, 4}}); }), "add_program: no part has leaf 2");
  EXPECT_NE(said([] { add_program({0, 2}, {{0, 2}, {3, 4}}); }).find("not nodes of leaves 0-1"), std::string::npos);
  EXPECT_EQ(said([] { allot({1, -1}); }), "a share of -1 leaves, must be 0 or more");
  EXPECT_EQ(said([] { allot({0, 0}); }), "shares without a leaf: at least one is needed");
  EXPECT_EQ(said([] { even_shares(4, 0); }), "4 micro-batches on 0 ranks: both must be at least 1");
}

}  // namespace
}  // namespace ringdp::plan
