// One rank of a group over the stand-in: shares its memory, runs plans, compares its output with the serial fold.
//
// The same text runs in a thread and in a process of its own; what differs is the Exchange. Made and ended by all ranks
// together; a call that fails throws.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "gpu/cuda/rank_case.h"

namespace ringdp::gpu::testing {

class GpuRank {
 public:
  GpuRank(const RankCase& one, int rank, Exchange& exchange, StreamFlags& flags)
      : case_(one), exchange_(exchange), plans_(plan::testing::device_plans(one.algorithm, problem())),
        plan_(plans_[rank]), layout_(plan_), rank_(rank), flags_(flags) {
    set_device(device());
    stream_.emplace();
    words_.emplace(sizeof(Expired) + 64);
    share();
    describe();
  }

  ~GpuRank() {
    stream_->synchronize();
    exchange_.meet();
    for (void* const peer : peers_) EXPECT_EQ(gpu().unimport_memory(peer), 0) << gpu().error();
    exchange_.meet();
    EXPECT_EQ(gpu().free(base_), 0) << gpu().error();
  }

  // "" or what is wrong.
  std::string run() {
    for (int launch = 0; launch < case_.launches; ++launch) {
      const Inputs inputs = inputs_of_launch(launch);
      enqueue(inputs[rank_], launch);
      stream_->synchronize();
      if (expired().set != 0) return "rank " + std::to_string(rank_) + " gave up";
      if (!plan::testing::has_output(plan_, problem().root) || output_ == right(inputs)) continue;
      return text_of(plan_) + ": launch " + std::to_string(launch) + " is wrong";
    }
    return "";
  }

  void enqueue(const std::vector<char>& input, int launch) {
    work_.stream_epoch = launch + 1;
    output_.assign(plan_.output * size_of(case_.dtype), 0);
    kept_ = input;
    void* const stream = stream_->handle();
    succeed(gpu().copy(work_.input[rank_], kept_.data(), kept_.size(), stream));
    const int element = static_cast<int>(case_.dtype), reduce = static_cast<int>(op());
    succeed(gpu().run(&work_, sizeof work_, element, reduce, case_.executor, stream));
    succeed(gpu().copy(output_.data(), work_.output[rank_], output_.size(), stream));
  }

  std::vector<char> right(const Inputs& inputs) const { return expected(plan_, inputs, problem().root, divisor()); }

  Inputs inputs_of_launch(int launch) const {
    Inputs inputs;
    for (const plan::DevicePlan& plan : plans_) {
      inputs.emplace_back(plan.input * size_of(plan.dtype));
      fill(inputs.back().data(), plan.dtype, plan.input, launch * 64 + plan.rank);
    }
    return inputs;
  }

  const Expired& expired() const { return *static_cast<const Expired*>(words_->host); }
  void abort() { __atomic_store_n(static_cast<uint32_t*>(words_->host) + sizeof(Expired) / 4, 1u, __ATOMIC_RELEASE); }
  TestStream& stream() { return *stream_; }
  const Work& work() const { return work_; }
  const std::vector<char>& output() const { return output_; }
  Flags& stream_flags() { return flags_.host[rank_]; }

 private:
  plan::DeviceProblem problem() const {
    plan::DeviceProblem problem =
        plan::testing::device_problem({case_.algorithm, case_.what}, case_.world, case_.packs, case_.dtype);
    problem.op = op();
    return problem;
  }
  bool averages() const { return case_.dtype == DType::kF32; }
  ReduceOp op() const { return averages() ? ReduceOp::kAvg : ReduceOp::kSum; }
  double divisor() const { return averages() ? 3 : 0; }
  int device() const { return case_.one_device ? 0 : rank_ % 2; }

  void share() {
    succeed(gpu().alloc(device(), layout_.bytes, case_.sharing, reinterpret_cast<void**>(&base_)));
    Share mine{};
    succeed(gpu().export_memory(base_, &mine.handle, &mine.fd));
    const std::vector<Share> all = exchange_.all(mine);
    for (const Share& share : all) {
      void* peer = nullptr;
      succeed(gpu().import_memory(device(), &share.handle, share.fd, &peer));
      peers_.push_back(static_cast<char*>(peer));
      if (share.fd >= 0) close(share.fd);
    }
  }

  void describe() {
    char* const words = static_cast<char*>(words_->device);
    work_.rank = rank_;
    work_.world = case_.world;
    work_.blocks = case_.blocks;
    work_.steps = static_cast<int32_t>(plan_.steps.size());
    work_.epoch = reinterpret_cast<Epoch*>(base_ + layout_.epoch);
    work_.deadline_ns = case_.deadline_ns;
    work_.divisor = divisor();
    work_.pushed_bytes = plan_.pushed_bytes;
    work_.expired = reinterpret_cast<Expired*>(words);
    work_.abort = reinterpret_cast<uint32_t*>(words + sizeof(Expired));
    std::copy(plan_.steps.begin(), plan_.steps.end(), work_.step);
    for (int r = 0; r < case_.world; ++r) place(r);
  }

  void place(int r) {
    work_.input[r] = peers_[r] + layout_.input;
    work_.output[r] = peers_[r] + layout_.output;
    work_.stage[r] = peers_[r] + layout_.stage;
    work_.pushed[r] = peers_[r] + layout_.pushed;
    work_.flags[r] = case_.executor == RD_GPU_SPIN ? reinterpret_cast<Flags*>(peers_[r] + layout_.flags)
                                                   : &flags_.device[r];
  }

  const RankCase case_;
  Exchange& exchange_;
  const std::vector<plan::DevicePlan> plans_;
  const plan::DevicePlan& plan_;
  const RankLayout layout_;
  const int rank_;
  StreamFlags& flags_;
  std::optional<TestStream> stream_;
  std::optional<Pinned> words_;
  char* base_ = nullptr;
  std::vector<char*> peers_;
  Work work_ = {};
  std::vector<char> kept_, output_;
};

}  // namespace ringdp::gpu::testing
