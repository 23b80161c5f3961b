// Test support: the ranks of a group as threads of one process, and what each of them threw.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "base/error.h"

namespace ringdp::comm {

// Runs body(rank) for 0..world-1 at once and joins them; entry r is the Error of rank r.
inline std::vector<std::optional<Error>> errors_of_ranks(int world, const std::function<void(int)>& body) {
  std::vector<std::optional<Error>> errors(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

// The same where no rank may fail.
inline void run_ranks(int world, const std::function<void(int)>& body) {
  const auto errors = errors_of_ranks(world, body);
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_FALSE(errors[rank]) << "rank " << rank << ": " << errors[rank]->what();
  }
}

inline void expect_message(const Error& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << "'" << part << "' in: " << error.what();
  }
}

}  // namespace ringdp::comm
