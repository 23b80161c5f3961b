// fold_tree on every instruction set against the tree written as a recursion over single elements.
#include "kernels/fold_tree.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "fold_reference.h"
#include "instruction_sets.h"
#include "kernels/dispatch.h"
#include "long_tests.h"

namespace ringdp::kernels::testing {
namespace {

constexpr int kAdd = -1;
using Program = std::vector<int>;

void append(Program& program, const Program& more) { program.insert(program.end(), more.begin(), more.end()); }

// The balanced tree over sources begin..end-1.
Program balanced(int begin, int end) {
  if (end - begin == 1) return {begin};
  const int middle = begin + (end - begin + 1) / 2;
  Program program = balanced(begin, middle);
  append(program, balanced(middle, end));
  program.push_back(kAdd);
  return program;
}

// ((0+1)+2)+..., or 0+(1+(2+...)).
Program comb(int sources, bool left) {
  Program program = {0};
  for (int k = 1; k < sources; ++k) append(program, left ? Program{k, kAdd} : Program{k});
  if (!left) program.insert(program.end(), sources - 1, kAdd);
  return program;
}

Program random_tree(int begin, int end, std::mt19937_64& random) {
  if (end - begin == 1) return {begin};
  const int middle = begin + 1 + static_cast<int>(random() % (end - begin - 1));
  Program program = random_tree(begin, middle, random);
  append(program, random_tree(middle, end, random));
  program.push_back(kAdd);
  return program;
}

struct TreeCase {
  DType dtype = DType::kF32;
  Program program;
  int n_srcs = 1;
  int64_t count = 0;
  uint64_t wide = 0;  // bit k: source k is wide
  bool wide_dst = false, in_place = false;
  double divisor = 0;
  int n_dsts = 1;

  std::string text() const {
    std::string text = std::string(name_of(dtype)) + " x " + std::to_string(count) + ", wide " + std::to_string(wide) +
                       (wide_dst ? " to wide" : "") + ", to " + std::to_string(n_dsts) + ", divisor " +
                       std::to_string(divisor) + ", program";
    for (const int word : program) text += " " + std::to_string(word);
    return text;
  }
};

// The words up to `at`, read backwards: an addition is preceded by its right and then its left operand.
template <class T>
decltype(widen(T{})) sum_of(const TreeCase& c, const std::vector<TreeSource>& srcs, int64_t i, size_t& at) {
  using W = decltype(widen(T{}));
  const int word = c.program[--at];
  if (word == kAdd) {
    const W right = sum_of<T>(c, srcs, i, at), left = sum_of<T>(c, srcs, i, at);
    return left + right;
  }
  T raw;
  W value;
  const auto* const data = static_cast<const char*>(srcs[word].data);
  if (srcs[word].wide) {
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    return value;
  }
  std::memcpy(&raw, data + i * sizeof raw, sizeof raw);
  return static_cast<W>(widen(raw));
}

std::string definition(const TreeCase& c, const std::vector<TreeSource>& srcs) {
  std::string all;
  visit_dtype(c.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using W = decltype(widen(T{}));
    if constexpr (std::is_floating_point_v<W>) {
      for (int64_t i = 0; i < c.count; ++i) {
        size_t at = c.program.size();
        W sum = sum_of<T>(c, srcs, i, at);
        if (c.divisor != 0) sum = sum / static_cast<W>(c.divisor);
        if (sum != sum) sum = std::numeric_limits<W>::quiet_NaN();
        T rounded;
        narrow(sum, rounded);
        c.wide_dst ? all.append(reinterpret_cast<const char*>(&sum), sizeof sum)
                   : all.append(reinterpret_cast<const char*>(&rounded), sizeof rounded);
      }
    }
  });
  return all;
}

void check_tree(const InstructionSet& set, const TreeCase& c) {
  std::mt19937_64 random(c.count * 131 + c.n_srcs * 17 + static_cast<int>(c.dtype));
  std::vector<Buffer> buffers;
  std::vector<TreeSource> srcs;
  for (int k = 0; k < c.n_srcs; ++k) {
    const bool wide = c.wide >> k & 1;
    const DType type = wide ? wide_of(c.dtype) : c.dtype;
    buffers.emplace_back(c.count, size_of(type));
    fill(random, type, buffers.back());
    srcs.push_back({buffers.back().data(), wide});
  }
  const int64_t dst_size = size_of(c.wide_dst ? wide_of(c.dtype) : c.dtype);
  // In place: the first destinations are the last sources.
  const int first = c.in_place ? std::max(c.n_srcs - c.n_dsts, c.n_srcs / 2) : c.n_srcs, last = first + c.n_dsts;
  while (static_cast<int>(buffers.size()) < last) buffers.emplace_back(c.count, dst_size);
  const std::string want = definition(c, srcs);
  std::vector<std::string> before;
  for (Buffer& buffer : buffers) before.push_back(buffer.content());
  std::vector<void*> dsts;
  for (int k = first; k < last; ++k) dsts.push_back(buffers[k].data());
  TreeArgs args;
  args.srcs = srcs, args.program = c.program, args.dsts = dsts, args.count = c.count;
  args.dtype = c.dtype, args.wide_dst = c.wide_dst, args.divisor = c.divisor;
  fold_tree_with(set, args);
  for (int k = 0; k < static_cast<int>(buffers.size()); ++k) {
    if (k >= first && k < last) {
      EXPECT_EQ(first_difference(buffers[k].content(), want, dst_size), -1)
          << c.text() << ": destination " << k - first;
    } else {
      EXPECT_TRUE(buffers[k].content() == before[k]) << c.text() << ": source " << k << " changed";
    }
  }
}

template <class Set>
class FoldTreeSuite : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const InstructionSet& set : supported_instruction_sets()) {
      if (std::string(set.name) == Set::name()) set_ = &set;
    }
    if (set_ == nullptr) GTEST_SKIP() << "this machine or this build has no " << Set::name();
  }

  // Every width of sources and destination that the type has, in place where possible, with and without a divisor.
  void check_everywhere(DType dtype, int n_srcs, const Program& program) {
    const bool is_short = wide_of(dtype) != dtype;
    for (const int64_t count : {int64_t{1}, int64_t{63}, int64_t{64}, int64_t{700}}) {
      for (const uint64_t wide : {uint64_t{0}, ~uint64_t{0}, uint64_t{0x5a6}}) {
        if (wide != 0 && !is_short) continue;
        for (const bool wide_dst : {false, true}) {
          if (wide_dst && !is_short) continue;
          TreeCase c{dtype, program, n_srcs, count, wide, wide_dst, false, wide_dst ? 0.0 : 3.0};
          check_tree(*set_, c);
          c.divisor = 3.0 - c.divisor;
          c.in_place = !is_short || (wide == 0) == !wide_dst;
          if (wide != 0x5a6) check_tree(*set_, c);
        }
      }
    }
  }

  const InstructionSet* set_ = nullptr;
};

constexpr DType kTypes[] = {DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

TYPED_TEST_SUITE(FoldTreeSuite, EverySet, NameOfSet);

TYPED_TEST(FoldTreeSuite, BalancedTreesOfEveryNumberOfSources) {
  for (const DType dtype : kTypes) {
    for (const int n_srcs :
         once_will_do() ? std::vector{1, 2, 5} : std::vector{1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 24, 33}) {
      this->check_everywhere(dtype, n_srcs, balanced(0, n_srcs));
    }
  }
}

TYPED_TEST(FoldTreeSuite, CombsAndRandomTrees) {
  std::mt19937_64 random(3);
  for (const DType dtype : kTypes) {
    for (const int n_srcs : {3, 9}) {
      this->check_everywhere(dtype, n_srcs, comb(n_srcs, true));
      this->check_everywhere(dtype, n_srcs, comb(n_srcs, false));
    }
    for (const int n_srcs : {6, 19, 40}) this->check_everywhere(dtype, n_srcs, random_tree(0, n_srcs, random));
  }
}

TYPED_TEST(FoldTreeSuite, TensorsLongerThanTheBlocks) {
  std::mt19937_64 random(5);
  for (const DType dtype : kTypes) {
    check_tree(*this->set_, {dtype, random_tree(0, 9, random), 9, 8259, 0, false, false, 5.0});
    check_tree(*this->set_, {dtype, balanced(0, 4), 4, 8259, 0, false, true});
    check_tree(*this->set_, {dtype, balanced(0, 6), 6, 8259, 0, false, true, 3.0, 6});
  }
}

// As many as a kernel writes, as there are sources, and others, which are copied.
TYPED_TEST(FoldTreeSuite, SeveralDestinations) {
  for (const DType dtype : kTypes) {
    for (const int n_srcs : {1, 2, 4, 5, 8, 16}) {
      for (const int n_dsts : {2, 3, n_srcs}) {
        for (const bool in_place : {false, true}) {
          check_tree(*this->set_, {dtype, balanced(0, n_srcs), n_srcs, 700, 0, false, in_place, 3.0, n_dsts});
        }
        check_tree(*this->set_, {dtype, balanced(0, n_srcs), n_srcs, 700, 0, true, false, 0.0, n_dsts});
      }
    }
  }
}

TEST(FoldTree, ASourceMayBeUsedSeveralTimesOrNot) {
  check_tree(supported_instruction_sets().front(), {DType::kBF16, {2, 2, kAdd, 0, kAdd}, 3, 130});
}

TEST(FoldTree, ALeftCombHasTheBitsOfFold) {
  std::mt19937_64 random(4);
  Buffer a(300, 2), b(300, 2), c(300, 2), tree(300, 2), rank_order(300, 2);
  for (Buffer* buffer : {&a, &b, &c}) fill(random, DType::kBF16, *buffer);
  const void* const srcs[] = {a.data(), b.data(), c.data()};
  void* const dst = rank_order.data();
  FoldArgs in_order;
  in_order.srcs = srcs, in_order.n_srcs = 3, in_order.dsts = &dst, in_order.n_dsts = 1;
  in_order.count = 300, in_order.dtype = DType::kBF16, in_order.divisor = 7;
  fold(in_order);
  const std::vector<TreeSource> sources = {{srcs[0]}, {srcs[1]}, {srcs[2]}};
  const Program program = comb(3, true);
  void* const to = tree.data();
  fold_tree({sources, program, {&to, 1}, 300, DType::kBF16, false, 7});
  EXPECT_EQ(tree.content(), rank_order.content());
}

TEST(FoldTree, PartsOfComplexNumbersAreAddedUpEachByItself) {
  const std::vector<float> a = {1, -2, 3, 4}, b = {10, 20, -30, 40};
  std::vector<float> sum(4);
  const std::vector<TreeSource> sources = {{a.data()}, {b.data()}};
  const Program program = {0, 1, kAdd};
  void* const to = sum.data();
  fold_tree({sources, program, {&to, 1}, 2, DType::kC64, false, 2});
  EXPECT_EQ(sum, (std::vector<float>{5.5, 9, -13.5, 22}));
}

TEST(FoldTree, RefusesBadArgumentsAndWritesNothing) {
  std::vector<float> a = {1, 2}, dst = {-1, -1};
  const std::vector<TreeSource> sources = {{a.data()}, {a.data()}}, missing = {{a.data()}, {nullptr}};
  const Program add = {0, 1, kAdd}, lonely = {0, kAdd}, two = {0, 1}, none, other = {0, 2, kAdd};
  void* const pointers[] = {dst.data(), nullptr};
  const std::span<void*const> to(pointers, 1), nowhere(pointers + 1, 1);
  const auto said = [&](const TreeArgs& args) -> std::string {
    try {
      fold_tree(args);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "nothing";
  };
  EXPECT_NE(said({sources, add, to, -3}).find("a count of -3"), std::string::npos);
  EXPECT_NE(said({sources, add, to, 2, DType::kI32}).find("no sums of int32"), std::string::npos);
  EXPECT_NE(said({missing, add, to, 2}).find("source 1 is null"), std::string::npos);
  EXPECT_NE(said({sources, add, nowhere, 2}).find("destination 0 is null"), std::string::npos);
  EXPECT_NE(said({sources, lonely, to, 2}).find("adds what is not there"), std::string::npos);
  EXPECT_NE(said({sources, two, to, 2}).find("ends with 2 sums"), std::string::npos);
  EXPECT_NE(said({sources, none, to, 2}).find("ends with 0 sums"), std::string::npos);
  EXPECT_NE(said({sources, other, to, 2}).find("source 2 of 2"), std::string::npos);
  EXPECT_NE(said({sources, add, {}, 2}).find("no destination"), std::string::npos);
  EXPECT_EQ(dst, (std::vector<float>{-1, -1}));
}

}  // namespace
}  // namespace ringdp::kernels::testing
