// The primitives of device/kernel/run_steps.h on host threads, as hostile as a weakly ordered machine may be.
//
// A store stays with its thread until the block meets, then with the block until one of its threads releases, and gets
// out earlier only by chance, in any order: so a sync or a release that is missing shows as wrong bits on any
// processor. Threads yield at random. Under TSan stores go to memory at once, so that it sees who wrote them. Seeded;
// thread-safe.
#pragma once
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "device/kernel/run_steps.h"

namespace ringdp::gpu::testing {

// The clock of ranks on host threads: it stands still while a thread that runs has not looked at it, so that no machine
// is too busy for a deadline.
//
// A thread looks where it waits, after many polls. So a tick passes only once everybody who might still bring what
// others wait for waits too; who is in a barrier of its block cannot. Relaxed on purpose: a thread sanitizer must not
// take the clock for what orders the ranks' accesses. Thread-safe.
class HostClock {
 public:
  // All asleep.
  explicit HostClock(int threads) : looked_(threads) {
    for (auto& looked : looked_) looked = kAsleep;
  }

  uint64_t look(int thread) {
    uint64_t now = now_.load(std::memory_order_relaxed);
    looked_[thread].store(now, std::memory_order_relaxed);
    bool have_all_looked = true;
    for (const auto& looked : looked_) have_all_looked &= looked.load(std::memory_order_relaxed) >= now;
    if (have_all_looked) now_.compare_exchange_strong(now, now + 1, std::memory_order_relaxed);
    return now * kTickNs;
  }
  void sleep(int thread) { looked_[thread].store(kAsleep, std::memory_order_relaxed); }
  void wake(int thread) { looked_[thread].store(0, std::memory_order_relaxed); }

 private:
  static constexpr uint64_t kAsleep = UINT64_MAX, kTickNs = 40'000'000;
  std::atomic<uint64_t> now_{1};
  std::vector<std::atomic<uint64_t>> looked_;  // the tick at which each thread looked last
};

// A barrier whose threads are asleep to the clock while they wait for one that is awake.
//
// The last to arrive never sleeps, and wakes the others first: so whoever is stopped anywhere in here, by a machine
// that is busy, stops the clock unless another thread of the barrier has yet to arrive.
class ClockedBarrier {
 public:
  // Of the threads from number `first` on. Null: no clock.
  ClockedBarrier(HostClock* clock, int first, int count)
      : clock_(clock), first_(first), count_(count), barrier_(count) {}

  void arrive_and_wait(int number) {
    tell_clock(number);
    barrier_.arrive_and_wait();
  }
  // What precedes the barrier.
  void tell_clock(int number) {
    if (clock_ == nullptr || count_ == 1) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++arrived_ < count_) return clock_->sleep(number);
    arrived_ = 0;
    for (int t = first_; t < first_ + count_; ++t) {
      if (t != number) clock_->wake(t);
    }
  }

 private:
  HostClock* const clock_;
  const int first_, count_;
  std::mutex mutex_;
  int arrived_ = 0;  // of the threads
  std::barrier<> barrier_;
};

struct Hostility {
  bool keeps_stores = true;
  bool syncs = true;  // false: a block whose sync() does nothing
  int one_yield_in = 8;
};

struct KeptStore {
  char* to;
  uint64_t of[2];
  bool is_words;

  void let_out() const {
    if (!is_words) {
      std::memcpy(to, of, sizeof(of));
      return;
    }
    __atomic_store_n(reinterpret_cast<uint64_t*>(to) + 1, of[1], __ATOMIC_RELAXED);
    __atomic_store_n(reinterpret_cast<uint64_t*>(to), of[0], __ATOMIC_RELAXED);
  }
};

// One block of one rank in one launch after another.
class HostBlock {
 public:
  explicit HostBlock(int threads, HostClock* clock = nullptr, int first = 0) : barrier_(clock, first, threads) {}

  void sync();

  // Three flags in turn: the next but one is cleared while nobody can still read it.
  bool sync_or(bool flag, uint32_t turn) {
    if (flag) any_[turn % 3].store(true);
    any_[(turn + 1) % 3].store(false);
    sync();
    return any_[turn % 3].load();
  }

  void keep(std::vector<KeptStore>& stores) {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.insert(kept_.end(), stores.begin(), stores.end());
    stores.clear();
  }
  bool find(const char* from, KeptStore* found) {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = kept_.size(); i-- > 0;) {
      if (kept_[i].to != from) continue;
      *found = kept_[i];
      return true;
    }
    return false;
  }
  void let_out() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const KeptStore& store : kept_) store.let_out();
    kept_.clear();
  }

 private:
  ClockedBarrier barrier_;
  std::atomic<bool> any_[3] = {};
  std::mutex mutex_;
  std::vector<KeptStore> kept_;  // by threads that have met since
};

struct HostThread {
  int thread = 0, threads = 1, block = 0;
  HostClock* clock = nullptr;  // null: the machine's
  int number = 0;              // of all ranks' threads, to the clock
  HostBlock* its_block = nullptr;
  Hostility hostility;
  std::minstd_rand random;
  uint32_t turn = 0;
  std::vector<KeptStore> kept;
};
inline thread_local HostThread* this_thread = nullptr;

inline void HostBlock::sync() { barrier_.arrive_and_wait(this_thread->number); }

struct HostPrim {
  static int thread() { return this_thread->thread; }
  static int threads() { return this_thread->threads; }
  static int block() { return this_thread->block; }

  static void sync() {
    if (!this_thread->hostility.syncs) return;
    this_thread->its_block->keep(this_thread->kept);
    this_thread->its_block->sync();
  }
  static bool sync_or(bool flag) {
    this_thread->its_block->keep(this_thread->kept);
    return this_thread->its_block->sync_or(flag, this_thread->turn++);
  }

  template <class V>
  static V load_acquire(const V* from) {
    poll();
    return __atomic_load_n(from, __ATOMIC_ACQUIRE);
  }
  template <class V>
  static void store_release(V* to, V value) {
    maybe_yield();
    if (this_thread->hostility.keeps_stores) {
      this_thread->its_block->let_out();
      for (const KeptStore& store : this_thread->kept) store.let_out();
      this_thread->kept.clear();
    }
    __atomic_store_n(to, value, __ATOMIC_RELEASE);
  }

  static Pack load(const Pack* from) {
    maybe_yield();
    KeptStore kept;
    if (find(from, &kept)) return bits_as<Pack>(kept.of);
    return *from;
  }
  static void store(Pack* to, Pack pack) {
    KeptStore store = {reinterpret_cast<char*>(to), {}, false};
    std::memcpy(store.of, &pack, sizeof(pack));
    keep(store);
  }
  static MarkedWords load_words(const MarkedWords* from) {
    poll();
    if (maybe(8)) this_thread->its_block->let_out();
    return {{__atomic_load_n(&from->of[0], __ATOMIC_RELAXED), __atomic_load_n(&from->of[1], __ATOMIC_RELAXED)}};
  }
  static void store_words(MarkedWords* to, MarkedWords words) {
    keep({reinterpret_cast<char*>(to), {words.of[0], words.of[1]}, true});
  }

  static uint32_t compare_and_swap(uint32_t* at, uint32_t old, uint32_t value) {
    __atomic_compare_exchange_n(at, &old, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
    return old;
  }
  static uint32_t add_one(uint32_t* at) { return __atomic_fetch_add(at, 1u, __ATOMIC_ACQ_REL); }
  static uint64_t clock_ns() {
    if (this_thread->clock != nullptr) return this_thread->clock->look(this_thread->number);
    return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count());
  }

  // The compiler's own conversions, an oracle of their own for kernels/baseline.h.
  static float half_to_float(uint16_t bits) { return static_cast<float>(bits_as<_Float16>(bits)); }
  static uint16_t float_to_half(float value) { return bits_as<uint16_t>(static_cast<_Float16>(value)); }

 private:
  static bool maybe(int one_in) { return one_in > 0 && this_thread->random() % one_in == 0; }
  static void maybe_yield() {
    if (maybe(this_thread->hostility.one_yield_in)) std::this_thread::yield();
  }
  // Yielding at every poll would make the 1024 before a look at the clock last for ever where threads share a core.
  static void poll() {
    if (maybe(32)) std::this_thread::yield();
    let_one_out();
  }
  static bool find(const Pack* from, KeptStore* found) {
    const char* const at = reinterpret_cast<const char*>(from);
    for (const KeptStore& store : this_thread->kept) {
      if (store.to != at) continue;
      *found = store;
      return true;
    }
    return this_thread->hostility.keeps_stores && this_thread->its_block->find(at, found);
  }
  static void keep(const KeptStore& store) {
    if (!this_thread->hostility.keeps_stores) return store.let_out();
    maybe_yield();
    for (KeptStore& kept : this_thread->kept) {
      if (kept.to != store.to) continue;
      kept = store;
      return;
    }
    this_thread->kept.push_back(store);
    if (maybe(8)) let_one_out();
  }
  static void let_one_out() {
    std::vector<KeptStore>& kept = this_thread->kept;
    if (kept.empty()) return;
    std::swap(kept[this_thread->random() % kept.size()], kept.back());
    kept.back().let_out();
    kept.pop_back();
  }
};

}  // namespace ringdp::gpu::testing
