// Which instruction sets are found, and that all of them give the same bits.
#include "kernels/dispatch.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

#include "kernels/fold.h"

namespace ringdp::kernels {
namespace {

TEST(Dispatch, FoldRunsOnTheFirstSet) { EXPECT_STREQ(instruction_set(), supported_instruction_sets().front().name); }

TEST(Dispatch, TheBaselineIsLastAndNamesAreUnique) {
  std::set<std::string> names;
  for (const InstructionSet& set : supported_instruction_sets()) names.insert(set.name);
  EXPECT_EQ(names.size(), supported_instruction_sets().size());
  const std::string last = supported_instruction_sets().back().name;
  EXPECT_TRUE(last == "scalar" || last == "neon") << last;
}

// Random bits: most sums meet infinities and NaNs of every payload.
std::vector<uint64_t> random_words(size_t words, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> out(words);
  for (uint64_t& word : out) word = random() % 3 ? random() : random() | 0x7ff07f807c007f80u;
  return out;
}

class SameBits : public ::testing::TestWithParam<int> {};

TEST_P(SameBits, OnEveryInstructionSet) {
  constexpr size_t kWords = 8195;
  const auto dtype = static_cast<DType>(GetParam());
  std::vector<std::vector<uint64_t>> buffers;
  std::vector<const void*> srcs;
  for (int k = 0; k < 5; ++k) buffers.push_back(random_words(kWords, k + 1));
  for (const auto& buffer : buffers) srcs.push_back(buffer.data());
  for (int op = 0; op < kReduceOpCount; ++op) {
    if (!can_reduce(dtype, static_cast<ReduceOp>(op))) continue;
    std::vector<uint64_t> first;
    // The last pass is fold() itself.
    for (size_t s = 0; s <= supported_instruction_sets().size(); ++s) {
      std::vector<uint64_t> sum(kWords);
      void* dst = sum.data();
      FoldArgs args;
      args.srcs = srcs.data(), args.n_srcs = 5, args.dsts = &dst, args.n_dsts = 1;
      args.count = kWords * 8 / size_of(dtype), args.dtype = dtype, args.op = static_cast<ReduceOp>(op);
      args.divisor = is_floating(dtype) ? 3 : 0;
      if (s < supported_instruction_sets().size()) {
        fold_with(supported_instruction_sets()[s].pick, args);
      } else {
        fold(args);
      }
      if (s == 0) first = sum;
      EXPECT_EQ(sum == first, true) << name_of(dtype) << ' ' << name_of(args.op) << " on set " << s;
    }
    EXPECT_NE(first, std::vector<uint64_t>(kWords)) << "nothing was written";
  }
}

INSTANTIATE_TEST_SUITE_P(Dispatch, SameBits, ::testing::Range(0, kNumberCount),
                         [](const auto& which) { return std::string(name_of(static_cast<DType>(which.param))); });

}  // namespace
}  // namespace ringdp::kernels
