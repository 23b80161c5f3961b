#include "kernels/fold_tree.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/dispatch.h"

namespace ringdp::kernels {
namespace {

constexpr int64_t kTreeBlockBytes = 16 << 10;  // long enough for prefetchers, and a few of them stay in cache

[[noreturn]] void refuse(const std::string& what) { throw Error(ErrorKind::kInvalidArgument, "fold_tree: " + what); }

// One word of the program with the sums that it adds.
struct Node {
  int source = -1;  // or
  int left = -1, right = -1;
};

std::vector<Node> parse(const TreeArgs& args) {
  std::vector<Node> nodes;
  std::vector<int> stack;
  for (const int word : args.program) {
    if (word >= static_cast<int>(args.srcs.size())) {
      refuse("source " + std::to_string(word) + " of " + std::to_string(args.srcs.size()));
    }
    Node node{std::max(word, -1)};
    if (word < 0) {
      if (stack.size() < 2) refuse("a program that adds what is not there");
      node.right = stack.back();
      stack.pop_back();
      node.left = stack.back();
      stack.pop_back();
    }
    stack.push_back(static_cast<int>(nodes.size()));
    nodes.push_back(node);
  }
  if (stack.size() != 1) refuse("a program that ends with " + std::to_string(stack.size()) + " sums, not with one");
  return nodes;
}

void check(const TreeArgs& args) {
  if (args.count < 0) refuse("a count of " + std::to_string(args.count) + " elements; it must be 0 or more");
  if (!is_floating(args.dtype)) refuse(std::string("no sums of ") + name_of(args.dtype));
  if (args.dsts.empty()) refuse("no destination; at least one is needed");
  if (args.count == 0) return;
  for (size_t i = 0; i < args.srcs.size(); ++i) {
    if (args.srcs[i].data == nullptr) refuse("source " + std::to_string(i) + " is null");
  }
  for (size_t i = 0; i < args.dsts.size(); ++i) {
    if (args.dsts[i] == nullptr) refuse("destination " + std::to_string(i) + " is null");
  }
}

struct alignas(64) Block {
  std::byte bytes[kTreeBlockBytes];
};

// The program as calls of kernels, each of which adds up a perfect tree of sources and blocks.
class TreeFolder {
 public:
  TreeFolder(const InstructionSet& set, const TreeArgs& args)
      : set_(set), args_(args), size_(size_of(args.dtype)), wide_size_(size_of(wide_of(args.dtype))) {
    nodes_ = parse(args);
    emit(static_cast<int>(nodes_.size()) - 1, kDestination);
    blocks_.resize(most_blocks_);
  }

  void run() {
    const int64_t tail = args_.count % kTile, body = args_.count - tail;
    const bool one_call = steps_.size() == 1 && kernel_dsts_ == args_.dsts.size();
    const int64_t longest = one_call ? body : kTreeBlockBytes / wide_size_;
    std::vector<const std::byte*> srcs(args_.srcs.size());
    std::vector<void*> dsts(kernel_dsts_);
    for (int64_t begin = 0, count; begin < body; begin += count) {
      count = std::min(longest, body - begin);
      for (size_t k = 0; k < srcs.size(); ++k) srcs[k] = source(k, begin);
      for (size_t k = 0; k < dsts.size(); ++k) dsts[k] = destination(k, begin);
      run_steps(srcs, dsts, count);
      copy_to_others(begin, count, dsts[0]);
    }
    if (tail > 0) run_padded(srcs, body, tail);
  }

 private:
  static constexpr int kDestination = -1;

  struct Operand {
    bool in_block = false;
    int index = 0;
  };
  struct Step {
    Kernel kernel;
    std::vector<Operand> operands;
    int block;  // that receives the sum, or kDestination
  };

  bool is_source(int node) const { return nodes_[node].source >= 0; }
  bool is_wide(int node) const { return !is_source(node) || args_.srcs[nodes_[node].source].wide; }

  int take_block() {
    most_blocks_ = std::max(most_blocks_, taken_blocks_ + 1);
    return taken_blocks_++;
  }

  // The inputs of the largest perfect tree of additions that ends in `node`, from left to right.
  std::vector<int> inputs_of(int node) const {
    std::vector<int> inputs = {node};
    while (inputs.size() < kMaxTreeSrcs &&
           std::none_of(inputs.begin(), inputs.end(), [&](int input) { return is_source(input); })) {
      std::vector<int> below;
      for (const int input : inputs) below.insert(below.end(), {nodes_[input].left, nodes_[input].right});
      inputs = std::move(below);
    }
    return inputs;
  }

  // Appends the steps that put the sum of `node` into a block or the destination.
  void emit(int node, int block) {
    const std::vector<int> inputs = inputs_of(node);
    const int first_block = taken_blocks_;
    const bool wide = std::any_of(inputs.begin(), inputs.end(), [&](int input) { return is_wide(input); });
    std::vector<Operand> operands;
    for (const int input : inputs) {
      if (is_source(input) && is_wide(input) == wide) {
        operands.push_back({false, nodes_[input].source});
        continue;
      }
      operands.push_back({true, take_block()});
      if (is_source(input)) {
        add_step({{false, nodes_[input].source}}, /*wide=*/false, operands.back().index);
      } else {
        emit(input, operands.back().index);
      }
    }
    add_step(std::move(operands), wide, block);
    taken_blocks_ = first_block;
  }

  void add_step(std::vector<Operand> operands, bool wide, int block) {
    const bool to_block = block != kDestination, same = size_ == wide_size_;
    const int n_srcs = static_cast<int>(operands.size());
    KernelKey key{args_.dtype,
                  ReduceOp::kSum,
                  wide && !same,
                  (to_block || args_.wide_dst) && !same,
                  !to_block && args_.divisor != 0,
                  n_srcs,
                  1};
    if (!to_block) {
      const int n_dsts = static_cast<int>(args_.dsts.size());
      const bool to_all = stores_to_all(key.op, n_srcs, n_dsts, key.wide_src, key.wide_dst);
      key.n_dsts = to_all ? n_dsts : kernel_dsts(key.op, n_dsts);
      kernel_dsts_ = key.n_dsts;
    }
    steps_.push_back({n_srcs == 1 ? set_.pick(key) : set_.pick_tree(key), std::move(operands), block});
  }

  int64_t size_of_source(size_t k) const { return args_.srcs[k].wide ? wide_size_ : size_; }
  int64_t size_of_destination() const { return args_.wide_dst ? wide_size_ : size_; }
  const std::byte* source(size_t k, int64_t begin) const {
    return static_cast<const std::byte*>(args_.srcs[k].data) + begin * size_of_source(k);
  }
  std::byte* destination(size_t k, int64_t begin) const {
    return static_cast<std::byte*>(args_.dsts[k]) + begin * size_of_destination();
  }

  // What the kernel has not written, from what it has: a block that is in the cache, or the padded tail.
  void copy_to_others(int64_t begin, int64_t count, const void* result) const {
    for (size_t k = kernel_dsts_; k < args_.dsts.size(); ++k) {
      if (destination(k, begin) != result) std::memcpy(destination(k, begin), result, count * size_of_destination());
    }
  }

  void run_steps(const std::vector<const std::byte*>& srcs, const std::vector<void*>& dsts, int64_t count) {
    for (const Step& step : steps_) {
      const void* from[kMaxTreeSrcs];
      for (size_t k = 0; k < step.operands.size(); ++k) {
        const Operand& operand = step.operands[k];
        from[k] = operand.in_block ? blocks_[operand.index].bytes : srcs[operand.index];
      }
      void* const to = step.block == kDestination ? nullptr : blocks_[step.block].bytes;
      step.kernel(from, to ? &to : dsts.data(), count, args_.divisor);
    }
  }

  // Zeros fill the tile up, so the tail takes the same instructions, and gets the same bits, as the body.
  void run_padded(std::vector<const std::byte*>& srcs, int64_t begin, int64_t count) {
    constexpr int64_t kTileBytes = kTile * kMaxElementBytes;
    std::vector<std::byte> in(srcs.size() * kTileBytes);
    std::vector<std::byte> out(kernel_dsts_ * kTileBytes);
    std::vector<void*> results;
    for (size_t k = 0; k < kernel_dsts_; ++k) results.push_back(&out[k * kTileBytes]);
    for (size_t k = 0; k < srcs.size(); ++k) {
      std::byte* const padded = &in[k * kTileBytes];
      std::memcpy(padded, source(k, begin), count * size_of_source(k));
      srcs[k] = padded;
    }
    run_steps(srcs, results, kTile);
    for (size_t k = 0; k < kernel_dsts_; ++k) {
      std::memcpy(destination(k, begin), results[k], count * size_of_destination());
    }
    copy_to_others(begin, count, results[0]);
  }

  const InstructionSet& set_;
  const TreeArgs& args_;
  const int64_t size_, wide_size_;
  std::vector<Node> nodes_;
  std::vector<Step> steps_;
  std::vector<Block> blocks_;
  size_t kernel_dsts_ = 1;  // destinations that the last step's kernel writes
  int taken_blocks_ = 0, most_blocks_ = 0;
};

}  // namespace

void fold_tree_with(const InstructionSet& set, const TreeArgs& asked) {
  const TreeArgs args = in_reals(asked);
  check(args);
  TreeFolder folder(set, args);
  if (args.count > 0) folder.run();
}

}  // namespace ringdp::kernels
