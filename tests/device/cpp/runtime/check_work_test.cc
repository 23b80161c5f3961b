// Good work passes; every way to spoil it is refused with the name of what is wrong.
#include "device/runtime/check_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "device/plan/catalog.h"

namespace ringdp::gpu {

namespace {

using plan::DeviceRef;
using plan::DeviceSpace;
using plan::DeviceStep;
using plan::DeviceVerb;

alignas(128) char memory[4096];

DeviceStep flag(DeviceVerb verb, int peer) {
  DeviceStep step;
  step.verb = verb;
  step.peer = static_cast<int8_t>(peer);
  step.value = 1;
  return step;
}

DeviceStep move(DeviceVerb verb, int8_t from, int8_t to) {
  DeviceStep step;
  step.verb = verb;
  step.from = {DeviceSpace::kInput, from, false, 8};
  step.to = {DeviceSpace::kOutput, to, false, 0};
  step.count = 16;
  return step;
}

struct Good {
  Work work{};
  Epoch epoch{};
  uint32_t abort = 0;
  Expired expired{};
  std::unique_ptr<Flags> flags = std::make_unique<Flags>();

  Good() {
    work.rank = 1;
    work.world = 2;
    work.blocks = 3;
    work.epoch = &epoch;
    work.stream_epoch = 1;
    work.deadline_ns = 1;
    work.abort = &abort;
    work.expired = &expired;
    work.pushed_bytes = 512;
    for (int r = 0; r < plan::kMaxDeviceRanks; ++r) {
      work.input[r] = work.output[r] = work.stage[r] = work.pushed[r] = memory;
      work.flags[r] = flags.get();
    }
    const DeviceStep steps[] = {flag(DeviceVerb::kPost, 0), flag(DeviceVerb::kAwait, 0),
                                move(DeviceVerb::kSum, plan::kAllRanks, plan::kAllRanks),
                                move(DeviceVerb::kCopy, 0, plan::kOwnRank)};
    for (const DeviceStep& step : steps) work.step[work.steps++] = step;
  }
};

template <class Check>
void expect_refused(const char* named, Check check) {
  try {
    check();
    ADD_FAILURE() << "not refused: " << named;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find(named), std::string::npos) << error.what();
  }
}

TEST(CheckWork, GoodWorkPasses) {
  Good good;
  EXPECT_NO_THROW(check_work(good.work, DType::kF32));
  EXPECT_NO_THROW(check_stream_work(good.work));
  good.work.step[3] = move(DeviceVerb::kSumPushed, plan::kOwnRank, plan::kOwnRank);
  EXPECT_NO_THROW(check_work(good.work, DType::kBF16));
}

TEST(CheckWork, CallersMemoryNeedsEverybodysAbort) {
  Good good;
  good.work.aborts[1] = &good.abort;
  expect_refused("aborts[0] is null", [&] { check_work(good.work, DType::kF32); });
  good.work.aborts[0] = &good.abort;
  EXPECT_NO_THROW(check_work(good.work, DType::kF32));
}

void expect_all_ranks_pass(plan::DeviceAlgorithm algorithm, plan::Problem problem) {
  for (problem.rank = 0; problem.rank < problem.world; ++problem.rank) {
    const plan::DevicePlan made = plan::make_device_plan(algorithm, problem);
    Good good;
    good.work.world = problem.world;
    good.work.rank = problem.rank;
    good.work.pushed_bytes = made.pushed_bytes;
    good.work.steps = static_cast<int>(made.steps.size());
    std::copy(made.steps.begin(), made.steps.end(), good.work.step);
    EXPECT_NO_THROW(check_work(good.work, problem.dtype)) << plan::text_of(made);
  }
}

TEST(CheckWork, EveryPlanPasses) {
  for (int a = 0; a < plan::kDeviceAlgorithmCount; ++a) {
    const auto algorithm = static_cast<plan::DeviceAlgorithm>(a);
    using plan::Collective;
    for (const auto what : {Collective::kAllReduce, Collective::kReduceScatter, Collective::kAllGather,
                            Collective::kBroadcast, Collective::kAllToAll}) {
      if (!plan::can_plan(algorithm, what)) continue;
      for (int world = 1; world <= plan::kMaxDeviceRanks; ++world) {
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          for (const int64_t count : {0, 8, 8 * 999}) {
            plan::Problem problem;
            problem.what = what;
            problem.dtype = dtype;
            problem.world = world;
            problem.count = count;
            expect_all_ranks_pass(algorithm, problem);
          }
        }
      }
    }
  }
}

TEST(CheckWork, WhatIsWrongIsNamed) {
  const std::vector<std::pair<const char*, std::function<void(Work&)>>> spoiled = {
      {"invalid value 9 for world (expected ", [](Work& w) { w.world = 9; }},
      {"invalid value 0 for world (expected ", [](Work& w) { w.world = 0; }},
      {"invalid value 2 for rank (expected ", [](Work& w) { w.rank = 2; }},
      {"invalid value 65 for blocks (expected ", [](Work& w) { w.blocks = 65; }},
      {"invalid value -1 for steps (expected ", [](Work& w) { w.steps = -1; }},
      {"invalid value 193 for steps (expected ", [](Work& w) { w.steps = 193; }},
      {"invalid value 0 for deadline_ns (expected ", [](Work& w) { w.deadline_ns = 0; }},
      {"epoch is null", [](Work& w) { w.epoch = nullptr; }},
      {"flags[1] is not 128-byte", [](Work& w) { w.flags[1] = reinterpret_cast<Flags*>(memory + 64); }},
      {"abort is null", [](Work& w) { w.abort = nullptr; }},
      {"expired is null", [](Work& w) { w.expired = nullptr; }},
      {"invalid value 2 for step 0: peer (expected ", [](Work& w) { w.step[0].peer = 2; }},
      {"invalid value 4 for step 0: slot (expected ", [](Work& w) { w.step[0].slot = 4; }},
      {"invalid value 0 for step 1: value (expected ", [](Work& w) { w.step[1].value = 0; }},
      {"invalid value 1024 for step 1: value (expected ", [](Work& w) { w.step[1].value = 1024; }},
      {"flags[0] is null", [](Work& w) { w.flags[0] = nullptr; }},
      {"flags[1] is null", [](Work& w) { w.flags[1] = nullptr; }},
      {"invalid value -4 for step 2: count (expected ", [](Work& w) { w.step[2].count = -4; }},
      {"invalid value 9223372036854775804 for step 2: count (expected ",
       [](Work& w) { w.step[2].count = INT64_MAX - 3; }},
      {"step 2: 15 elements of float32", [](Work& w) { w.step[2].count = 15; }},
      {"step 2: from offset 7", [](Work& w) { w.step[2].from.offset = 7; }},
      {"invalid value -8 for step 2: to offset (expected ", [](Work& w) { w.step[2].to.offset = -8; }},
      {"invalid value 5 for step 3: from rank (expected ", [](Work& w) { w.step[3].from.rank = 5; }},
      {"step 2: from of rank 0 is null", [](Work& w) { w.input[0] = nullptr; }},
      {"step 2: to of rank 1 is not 16-byte", [](Work& w) { w.output[1] += 8; }},
      {"step 3: verb 99", [](Work& w) { w.step[3].verb = static_cast<DeviceVerb>(99); }},
      {"invalid value 127 for step 3: pushed_bytes (expected ",
       [](Work& w) { w.step[3].verb = DeviceVerb::kPush, w.pushed_bytes = 127; }},
      {"pushed[1] is null", [](Work& w) { w.step[3].verb = DeviceVerb::kPush, w.pushed[1] = nullptr; }},
      {"step 3: addend offset 2", [](Work& w) { w.step[3].verb = DeviceVerb::kAdd, w.step[3].addend.offset = 2; }},
  };
  for (const auto& [named, spoil] : spoiled) {
    Good good;
    spoil(good.work);
    expect_refused(named, [&] { check_work(good.work, DType::kF32); });
  }
}

TEST(CheckWork, StreamsNeitherWaitInKernelsNorGoUncounted) {
  Good good;
  good.work.step[3].verb = DeviceVerb::kSumPushed;
  expect_refused("step 3 waits for pushed packs", [&] { check_stream_work(good.work); });
  good.work.steps = 3;
  EXPECT_NO_THROW(check_stream_work(good.work));
  good.work.stream_epoch = 0;
  expect_refused("stream_epoch is 0", [&] { check_stream_work(good.work); });
}

TEST(CheckWork, BlocksThatPollAreCounted) {
  Good good;
  EXPECT_NO_THROW(check_spin_work(good.work));
  good.work.blocks = 0;
  EXPECT_NO_THROW(check_work(good.work, DType::kF32));
  expect_refused("blocks is 0", [&] { check_spin_work(good.work); });
}

TEST(CheckWork, TheFusedStepToo) {
  uint32_t abort = 0;
  Epoch epoch = {};
  AdamWork good{};
  good.world = 2;
  good.count = 8;
  good.abort = &abort;
  good.epoch = &epoch;
  float* const place = reinterpret_cast<float*>(memory);
  for (int r = 0; r < 2; ++r) good.gradients[r] = good.parameters[r] = place;
  good.state[0] = good.state[1] = place;
  EXPECT_NO_THROW(check_adam_work(good));
  AdamWork some = good;
  some.count = 7;
  some.parameters[1] = nullptr;
  EXPECT_NO_THROW(check_adam_work(some)) << "a last pack of three; rank 1 wants no parameters";
  const std::vector<std::pair<const char*, std::function<void(AdamWork&)>>> spoiled = {
      {"invalid value 9 for world (expected ", [](AdamWork& w) { w.world = 9; }},
      {"invalid value -1 for count (expected ", [](AdamWork& w) { w.count = -1; }},
      {"gradients[1] is null", [](AdamWork& w) { w.gradients[1] = nullptr; }},
      {"parameters[0] is not 16-byte", [](AdamWork& w) { w.parameters[0] += 1; }},
      {"parameters[0] is null", [](AdamWork& w) { w.parameters[0] = nullptr; }},
      {"state[2] is null", [](AdamWork& w) { w.scalars.amsgrad = true; }},
      {"abort is null", [](AdamWork& w) { w.abort = nullptr; }},
      {"epoch is null", [](AdamWork& w) { w.epoch = nullptr; }},
  };
  for (const auto& [named, spoil] : spoiled) {
    AdamWork work = good;
    spoil(work);
    expect_refused(named, [&] { check_adam_work(work); });
  }
}

TEST(CheckWork, WireTypesToo) {
  const CodecWork good = {memory, memory + 1024, 100, 99, DType::kBF16, WireType::kFp8, true};
  EXPECT_NO_THROW(check_codec_work(good));
  EXPECT_NO_THROW(check_codec_work({nullptr, nullptr, 0, 0, DType::kF32, WireType::kInt8, false}));
  const std::vector<std::pair<const char*, std::function<void(CodecWork&)>>> spoiled = {
      {"invalid value 0 for wire (expected ", [](CodecWork& w) { w.wire = WireType::kFp32; }},
      {"invalid value 5 for wire (expected ", [](CodecWork& w) { w.wire = static_cast<WireType>(5); }},
      {"invalid value -1 for count (expected ", [](CodecWork& w) { w.count = -1; }},
      {"invalid value 101 for held (expected ", [](CodecWork& w) { w.held = 101; }},
      {"element int32 is no real floating type", [](CodecWork& w) { w.element = DType::kI32; }},
      {"from is null", [](CodecWork& w) { w.from = nullptr; }},
      {"to is not 16-byte", [](CodecWork& w) { w.to += 4; }},
  };
  for (const auto& [named, spoil] : spoiled) {
    CodecWork work = good;
    spoil(work);
    expect_refused(named, [&] { check_codec_work(work); });
  }
}

}  // namespace

// What only moves, and that it moves the same bytes when it is counted in another type.

namespace {

Work with(DeviceVerb verb) {
  Work work{};
  work.steps = 2;
  work.step[0].verb = DeviceVerb::kAwait;
  work.step[1].verb = verb;
  work.step[1].count = 48;
  work.step[1].from.offset = 16;
  work.step[1].to.offset = 32;
  return work;
}

TEST(Moves, EveryVerbIsOneOrTheOther) {
  for (const DeviceVerb verb : {DeviceVerb::kPost, DeviceVerb::kAwait, DeviceVerb::kCopy, DeviceVerb::kPush}) {
    EXPECT_TRUE(only_moves(with(verb)));
  }
  for (const DeviceVerb verb : {DeviceVerb::kSum, DeviceVerb::kAdd, DeviceVerb::kSumPushed}) {
    EXPECT_FALSE(only_moves(with(verb)));
  }
  Work beyond = with(DeviceVerb::kSum);
  beyond.steps = 1;
  EXPECT_TRUE(only_moves(beyond));
}

TEST(Moves, TheBytesStayTheSame) {
  for (int d = 0; d < kDTypeCount; ++d) {
    const auto element = static_cast<DType>(d);
    const Work before = with(DeviceVerb::kCopy);
    Work after = before;
    count_as_float32(after, element);
    const int64_t size = size_of(element);
    EXPECT_EQ(after.step[1].count * 4, before.step[1].count * size) << name_of(element);
    EXPECT_EQ(after.step[1].from.offset * 4, before.step[1].from.offset * size) << name_of(element);
    EXPECT_EQ(after.step[1].to.offset * 4, before.step[1].to.offset * size) << name_of(element);
  }
}

}  // namespace

}  // namespace ringdp::gpu
