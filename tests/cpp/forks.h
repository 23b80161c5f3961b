// Test support: children that are forked in the middle of what other threads do.
#pragma once
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <thread>
#include <vector>

namespace ringdp {

// Whether `use` returns true in every child that is forked while two threads call it all the time. It must not
// allocate: sanitizers' allocators have locks of their own.
inline bool works_in_children(const std::function<bool()>& use) {
  constexpr int kChildren = 20, kPatienceS = 60;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([&] {
      while (!done) use();
    });
  }
  int status = 0;
  for (int i = 0; i < kChildren && status == 0; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(kPatienceS);  // ends it where it hangs
      ::_exit(use() ? 0 : 1);
    }
    ::waitpid(child, &status, 0);
  }
  done = true;
  for (std::thread& thread : threads) thread.join();
  return status == 0;
}

}  // namespace ringdp
