// A wide-area network in user space, for kernels without netem: hosts are network namespaces, each with a TUN device
// "eth0", and this program carries packets between the devices with a delay, at a rate, with jitter and loss.
//
//   cc -O2 -o far far.c && far DELAY_MS JITTER_MS RATE_MBIT QUEUE_MS LOSS SEED NAMESPACE NAMESPACE...   # needs root
//
// It prints "ready" once the devices are there; the caller gives the n-th one an address that ends in n, from 1 on, and
// sets it up. Lines on its standard input change the network from then on:
//
//   delay MS     what is sent now takes so long; packets under way arrive as before
//   cut N        what the n-th host sends, and what is sent to it, vanishes
//   join N       it no longer does
//
// It ends with that input, and then prints for each host the packets sent, lost by chance and dropped by a full queue.
// The devices go with it, however it ends.
//
// Every host sends and receives at RATE_MBIT: a packet that would wait longer than QUEUE_MS for its turn is dropped.
// Between the two ends it takes DELAY_MS, and up to JITTER_MS more; packets of a pair of hosts keep their order. Of all
// packets, acknowledgements too, the share LOSS is lost; which ones depends on SEED and the number of the packet only.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST_HOSTS = 16, MOST_BYTES = 2048, ETHERNET_BYTES = 14, BATCH = 64, TICK_NS = 50000 };

struct packet {
  struct packet* next;
  int64_t due;
  ssize_t bytes;
  char data[];
};

struct queue {  // packets from one host to another
  struct packet *first, *last;
};

struct host {
  int device;
  int64_t sends_until, receives_until;  // when its line is free again
  uint64_t random;
  struct queue to[MOST_HOSTS];
  int is_cut;
  long sent, lost, dropped;
};

static struct host hosts[MOST_HOSTS];
static int count;
static double delay_ns, jitter_ns, ns_per_byte, queue_ns, loss;

static void fail(const char* what) {
  fprintf(stderr, "far: %s: %s\n", what, strerror(errno));
  exit(1);
}

static int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

// From 0 to below 1, by xorshift64*.
static double uniform(struct host* host) {
  host->random ^= host->random >> 12;
  host->random ^= host->random << 25;
  host->random ^= host->random >> 27;
  return (double)((host->random * 0x2545f4914f6cdd1dULL) >> 11) / (double)(1ULL << 53);
}

// When a packet that comes to a line at `time` has passed it; -1: its queue is full.
static int64_t pass(int64_t* busy_until, int64_t time, ssize_t bytes) {
  const int64_t begin = *busy_until > time ? *busy_until : time;
  if (begin - time > (int64_t)queue_ns) return -1;
  return *busy_until = begin + (int64_t)((double)(bytes + ETHERNET_BYTES) * ns_per_byte);
}

static void take(struct host* from, const char* data, ssize_t bytes) {
  const int to = (unsigned char)data[19] - 1;  // by the last byte of the destination
  if (bytes < 20 || (unsigned char)data[0] >> 4 != 4 || to < 0 || to >= count) return;
  ++from->sent;
  if (from->is_cut || hosts[to].is_cut) return;
  const double chance = uniform(from), share = uniform(from);  // both for every packet, so that each has its own
  if (chance < loss) {
    ++from->lost;
    return;
  }
  int64_t due = pass(&from->sends_until, now_ns(), bytes);
  if (due >= 0) due = pass(&hosts[to].receives_until, due + (int64_t)(delay_ns + share * jitter_ns), bytes);
  if (due < 0) {
    ++from->dropped;
    return;
  }
  struct queue* queue = &from->to[to];
  struct packet* packet = malloc(sizeof *packet + (size_t)bytes);
  if (!packet) fail("memory");
  if (queue->first && queue->last->due > due) due = queue->last->due;
  *packet = (struct packet){NULL, due, bytes};
  memcpy(packet->data, data, (size_t)bytes);
  *(queue->first ? &queue->last->next : &queue->first) = packet;
  queue->last = packet;
}

// Hands over what is due; the time of the next packet.
static int64_t deliver(struct host* from, int64_t now) {
  int64_t next = INT64_MAX;
  for (int to = 0; to < count; ++to) {
    struct queue* queue = &from->to[to];
    while (queue->first && queue->first->due <= now) {
      struct packet* packet = queue->first;
      // A device that is down, or a full one, loses packets as any does.
      if (write(hosts[to].device, packet->data, (size_t)packet->bytes) < 0 && errno == EBADFD) fail("write");
      queue->first = packet->next;
      free(packet);
    }
    if (queue->first && queue->first->due < next) next = queue->first->due;
  }
  return next;
}

static void enter(int namespace, const char* name) {
  if (namespace < 0 || setns(namespace, CLONE_NEWNET) < 0) fail(name);
}

// In a namespace, to which this process does not belong afterwards.
static int open_device(const char* namespace) {
  char path[256];
  snprintf(path, sizeof path, "/run/netns/%s", namespace);
  const int here = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC), there = open(path, O_RDONLY | O_CLOEXEC);
  enter(there, path);
  struct ifreq request = {.ifr_name = "eth0"};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) < 0) fail("/dev/net/tun");
  enter(here, "/proc/self/ns/net");
  close(here), close(there);
  return device;
}

static void obey(const char* line) {
  double delay_ms;
  int number;
  char end;
  if (sscanf(line, "delay %lf%c", &delay_ms, &end) == 1 && delay_ms >= 0) {
    delay_ns = 1e6 * delay_ms;
  } else if (sscanf(line, "cut %d%c", &number, &end) == 1 && number >= 1 && number <= count) {
    hosts[number - 1].is_cut = 1;
  } else if (sscanf(line, "join %d%c", &number, &end) == 1 && number >= 1 && number <= count) {
    hosts[number - 1].is_cut = 0;
  } else {
    errno = EINVAL;
    fail(line);
  }
}

// Obeys the lines that have come whole; false at the end of the input.
static int listen_to_caller(void) {
  static char text[256];
  static size_t held;
  const ssize_t bytes = read(STDIN_FILENO, text + held, sizeof text - 1 - held);
  if (bytes <= 0) return 0;
  held += (size_t)bytes;
  text[held] = 0;
  char *line = text, *end;
  for (; (end = strchr(line, '\n')); line = end + 1) {
    *end = 0;
    obey(line);
  }
  held = strlen(line);
  memmove(text, line, held);
  return 1;
}

static void carry(void) {
  struct pollfd polls[MOST_HOSTS + 1];
  for (int i = 0; i < count; ++i) polls[i] = (struct pollfd){hosts[i].device, POLLIN, 0};
  polls[count] = (struct pollfd){STDIN_FILENO, POLLIN, 0};
  while (!(polls[count].revents & (POLLIN | POLLHUP)) || listen_to_caller()) {
    polls[count].revents = 0;
    char data[MOST_BYTES];
    int64_t next = INT64_MAX;
    for (int i = 0; i < count; ++i) {
      ssize_t bytes = 0;
      for (int n = 0; n < BATCH && (bytes = read(hosts[i].device, data, sizeof data)) > 0; ++n) {
        take(&hosts[i], data, bytes);
      }
      if (bytes > 0) next = 0;  // there is more
    }
    for (int i = 0; i < count; ++i) {
      const int64_t due = deliver(&hosts[i], now_ns());
      if (due < next) next = due;
    }
    // What is due within a tick is handed over together: to wake up for each packet would cost more than a core.
    int64_t left = next == INT64_MAX ? next : next - now_ns();
    if (next > 0 && left < TICK_NS) left = TICK_NS;
    if (left < 0) left = 0;
    const struct timespec wait = {left / 1000000000, left % 1000000000};
    if (ppoll(polls, (nfds_t)count + 1, next == INT64_MAX ? NULL : &wait, NULL) < 0 && errno != EINTR) fail("poll");
  }
}

int main(int argc, char** argv) {
  if (argc < 9 || argc - 7 > MOST_HOSTS) {
    fprintf(stderr, "far DELAY_MS JITTER_MS RATE_MBIT QUEUE_MS LOSS SEED NAMESPACE NAMESPACE...\n");
    return 2;
  }
  delay_ns = 1e6 * atof(argv[1]), jitter_ns = 1e6 * atof(argv[2]), ns_per_byte = 8e3 / atof(argv[3]);
  queue_ns = 1e6 * atof(argv[4]), loss = atof(argv[5]);
  count = argc - 7;
  prctl(PR_SET_TIMERSLACK, 1000);
  sched_setscheduler(0, SCHED_FIFO, &(struct sched_param){1});  // where it may: a link is not slow on a busy machine
  for (int i = 0; i < count; ++i) {
    hosts[i].device = open_device(argv[7 + i]);
    hosts[i].random = (strtoull(argv[6], NULL, 10) * 1000003 + (uint64_t)i) * 0x9e3779b97f4a7c15ULL | 1;
    for (int n = 0; n < 16; ++n) uniform(&hosts[i]);
  }
  puts("ready");
  fflush(stdout);
  carry();
  for (int i = 0; i < count; ++i) printf("%ld %ld %ld\n", hosts[i].sent, hosts[i].lost, hosts[i].dropped);
  return 0;
}
