// Test support: N ranks as threads of one process, each with its own engine and watch, joined in one group.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/group.h"
#include "comm/memory_store.h"

namespace ringdp::comm {

const auto kLong = std::chrono::seconds(60);  // a guard against hanging

using RankBody = std::function<void(int rank, Group& group, Runtime& runtime)>;

// Runs `body` on every rank and returns each rank's error text ("" when it ended well). Groups leave at the end.
inline std::vector<std::string> run_fleet(int world, const std::function<Settings(int rank)>& settings,
                                          const RankBody& body) {
  MemoryStore store;
  std::vector<std::string> errors(world);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      Runtime runtime;
      try {
        const auto group =
            Group::create(runtime, store, {"fleet", rank, world, settings(rank)}, Deadline::after(kLong));
        try {
          body(rank, *group, runtime);
        } catch (const Error& error) {
          errors[rank] = std::string(name_of(error.kind())) + ": " + error.what();
        }
        group->leave();
      } catch (const Error& error) {
        errors[rank] = std::string(name_of(error.kind())) + ": " + error.what();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return errors;
}

inline std::vector<std::string> run_fleet(int world, const Settings& settings, const RankBody& body) {
  return run_fleet(
      world, [&](int) { return settings; }, body);
}

inline void expect_no_errors(const std::vector<std::string>& errors) {
  for (size_t rank = 0; rank < errors.size(); ++rank) EXPECT_EQ(errors[rank], "") << "rank " << rank;
}

// Every rank's error has all of these words.
inline void expect_all(const std::vector<std::string>& errors, const std::vector<std::string>& words) {
  for (const std::string& error : errors) {
    for (const std::string& word : words)
      EXPECT_NE(error.find(word), std::string::npos) << word << " not in: " << error;
  }
}

inline Settings with(const std::vector<std::pair<std::string, std::string>>& fields) {
  Settings settings;
  for (const auto& [field, value] : fields) set_field(settings, field, value);
  return settings;
}

inline Request all_reduce(std::vector<float>& data, ReduceOp op = ReduceOp::kSum) {
  Request request;
  request.desc.what = plan::Collective::kAllReduce;
  request.desc.dtype = DType::kF32;
  request.desc.op = op;
  request.desc.count = static_cast<int64_t>(data.size());
  request.buffers = {{data.data()}, {data.data()}};
  request.deadline = Deadline::after(kLong);
  return request;
}

inline Request barrier() {
  Request request;
  request.desc.what = plan::Collective::kBarrier;
  request.deadline = Deadline::after(kLong);
  return request;
}

inline void run_op(Group& group, Request request) {
  ASSERT_TRUE(group.wait(*group.submit(std::move(request)), Deadline::after(kLong)));
}

inline MessageRequest message(std::vector<float>& memory, int peer, int32_t tag = 0) {
  MessageRequest request;
  request.peer = peer;
  request.tag = tag;
  request.dtype = DType::kF32;
  request.count = static_cast<int64_t>(memory.size());
  request.memory = memory.data();
  request.deadline = Deadline::after(kLong);
  return request;
}

}  // namespace ringdp::comm
