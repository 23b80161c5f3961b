// What the ranks of a benchmark do outside Python: wait for their turn, meet at a barrier, fill, check and sweep memory.
//
// Compiled when a session starts (runner/native.py) and loaded with ctypes by every process, whatever its interpreter. All
// shared words lie in one mapping (struct block), so that processes started by different launchers can take turns.
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { kMaxRanks = 64, kMaxTeams = 16, kBatch = 1024 };

// A team is the set of processes that one launcher has started. Only the team in turn is awake.
struct team {
  _Alignas(128) atomic_int turn;  // counts its turns
  _Alignas(128) atomic_int arrived;
  _Alignas(128) atomic_int generation;
};

// Mirrored by Block in runner/native.py.
struct block {
  struct team teams[kMaxTeams];
  _Alignas(128) atomic_int done;  // members that have finished the turn
  _Alignas(128) atomic_int gone;  // a rank has given up: no rank waits any more
  _Alignas(128) int64_t order[8];  // the coordinator's order for this turn
  int64_t start[kMaxRanks], stop[kMaxRanks], wrong[kMaxRanks];
};

size_t runner_block_bytes(void) { return sizeof(struct block); }

static void wake(atomic_int* word) { syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }
static void doze(atomic_int* word, int seen, int milliseconds) {
  const struct timespec limit = {milliseconds / 1000, milliseconds % 1000 * 1000000L};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}
static int64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000LL + t.tv_nsec;
}
static void relax(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

void runner_give_turn(struct block* b, int team) {
  atomic_store(&b->done, 0);
  atomic_fetch_add(&b->teams[team].turn, 1);
  wake(&b->teams[team].turn);
}

// The number of the turn that has come, or `seen` when none came in time.
int runner_await_turn(struct block* b, int team, int seen, int milliseconds) {
  if (atomic_load(&b->teams[team].turn) == seen) doze(&b->teams[team].turn, seen, milliseconds);
  return atomic_load(&b->teams[team].turn);
}

void runner_finish_turn(struct block* b) {
  atomic_fetch_add(&b->done, 1);
  wake(&b->done);
}

// How many members have finished; returns early when that changes.
int runner_await_done(struct block* b, int wanted, int milliseconds) {
  const int done = atomic_load(&b->done);
  if (done != wanted) doze(&b->done, done, milliseconds);
  return atomic_load(&b->done);
}

void runner_give_up(struct block* b) { atomic_store(&b->gone, 1); }

// 0: all have arrived. 1: a rank has given up. Polls for `poll_us`, offering the core now and then, before it sleeps.
int runner_barrier(struct block* b, int team, int ranks, int poll_us) {
  struct team* t = &b->teams[team];
  const int generation = atomic_load(&t->generation);
  if (atomic_fetch_add(&t->arrived, 1) == ranks - 1) {
    atomic_store(&t->arrived, 0);
    atomic_store(&t->generation, generation + 1);
    wake(&t->generation);
    return 0;
  }
  for (const int64_t until = now_ns() + poll_us * 1000LL; poll_us > 0 && now_ns() < until; sched_yield()) {
    for (int i = 0; i < 100; ++i, relax()) {
      if (atomic_load_explicit(&t->generation, memory_order_acquire) != generation) return 0;
    }
  }
  while (atomic_load(&t->generation) == generation) {
    if (atomic_load(&b->gone)) return 1;
    doze(&t->generation, generation, 200);
  }
  return 0;
}

// Whole numbers -4..3 that depend on every bit of index and seed. Sums over 64 ranks are exact in float32 and bfloat16.
static inline int value(uint64_t index, uint32_t seed) {
  uint32_t h = (uint32_t)index + seed;
  h = (h ^ (h >> 15)) * 0x85ebca6bu;
  h = (h ^ (h >> 13)) * 0xc2b2ae35u;
  return (int)(h >> 29) - 4;
}
static inline uint16_t narrow(float f) {
  uint32_t bits;
  memcpy(&bits, &f, sizeof bits);
  return (uint16_t)(bits >> 16);
}

void runner_fill_float32(float* x, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) x[i] = (float)value(i, seed);
}
void runner_fill_bfloat16(uint16_t* x, size_t n, uint32_t seed) {
  for (size_t i = 0; i < n; ++i) x[i] = narrow((float)value(i, seed));
}

// expected[j] = the sum over seeds of value(first + j, seed).
static void expect(float* expected, uint64_t first, size_t n, const uint32_t* seeds, int ranks) {
  int sum[kBatch] = {0};
  for (int r = 0; r < ranks; ++r) {
    const uint32_t seed = seeds[r];
    for (size_t j = 0; j < n; ++j) sum[j] += value(first + j, seed);
  }
  for (size_t j = 0; j < n; ++j) expected[j] = (float)sum[j];
}

// How many elements of one batch are not as expected.
typedef int64_t (*differing)(const void* x, const float* expected, size_t n);

static int64_t differing_float32(const void* x, const float* expected, size_t n) {
  const float* found = x;
  int64_t wrong = 0;
  for (size_t j = 0; j < n; ++j) wrong += found[j] != expected[j];
  return wrong;
}
static int64_t differing_bfloat16(const void* x, const float* expected, size_t n) {
  const uint16_t* found = x;
  int64_t wrong = 0;
  for (size_t j = 0; j < n; ++j) wrong += found[j] != narrow(expected[j]) && !(found[j] == 0x8000 && !expected[j]);
  return wrong;
}

static int64_t count_wrong(const char* x, size_t element, size_t n, uint64_t first, const uint32_t* seeds, int ranks,
                           differing in_batch) {
  int64_t wrong = 0;
  float expected[kBatch];
  for (size_t i = 0; i < n; i += kBatch) {
    const size_t batch = n - i < kBatch ? n - i : kBatch;
    expect(expected, first + i, batch, seeds, ranks);
    wrong += in_batch(x + i * element, expected, batch);
  }
  return wrong;
}

// How many of x[0..n) are not that sum for element `first` + i.
int64_t runner_wrong_float32(const float* x, size_t n, uint64_t first, const uint32_t* seeds, int ranks) {
  return count_wrong((const char*)x, sizeof *x, n, first, seeds, ranks, differing_float32);
}
int64_t runner_wrong_bfloat16(const uint16_t* x, size_t n, uint64_t first, const uint32_t* seeds, int ranks) {
  return count_wrong((const char*)x, sizeof *x, n, first, seeds, ranks, differing_bfloat16);
}

// The limits: perfect movement of a collective's bytes, and nothing else. Bytes are counted as float32.
void runner_scale(float* x, size_t n, float factor) {
  for (size_t i = 0; i < n; ++i) x[i] *= factor;
}
void runner_copy(void* to, const void* from, size_t bytes) { memcpy(to, from, bytes); }
// out[j] = the sum over `parts` of in[part * n + j].
void runner_fold(float* out, const float* in, size_t n, int parts) {
  for (size_t i = 0; i < n; i += kBatch) {
    const size_t batch = n - i < kBatch ? n - i : kBatch;
    float sum[kBatch] = {0};
    for (int part = 0; part < parts; ++part) {
      for (size_t j = 0; j < batch; ++j) sum[j] += in[part * n + i + j];
    }
    memcpy(out + i, sum, batch * sizeof(float));
  }
}
