#include "comm/hosts.h"

#include <gtest/gtest.h>

#include <thread>

#include "memory_store.h"

namespace ringdp::comm {
namespace {

// One rank per letter; equal letters are one host.
std::vector<Card> cards_of(const std::string& hosts) {
  std::vector<Card> cards;
  for (const char host : hosts) {
    Card card;
    card.identity = transport::local_identity();
    card.identity.boot_id = host;
    cards.push_back(card);
  }
  return cards;
}

TEST(Hosts, AreKnownByTheirFirstRank) {
  EXPECT_EQ(contiguous_hosts(cards_of("a")), (std::vector<int>{0}));
  EXPECT_EQ(contiguous_hosts(cards_of("aaaa")), (std::vector<int>{0}));
  EXPECT_EQ(contiguous_hosts(cards_of("aabbb")), (std::vector<int>{0, 2}));
  EXPECT_EQ(contiguous_hosts(cards_of("abc")), (std::vector<int>{0, 1, 2}));
}

TEST(Hosts, ScatteredRanksHaveNone) {
  EXPECT_TRUE(contiguous_hosts(cards_of("aba")).empty());
  EXPECT_TRUE(contiguous_hosts(cards_of("aabba")).empty());
}

// What rank 0 hears when rank `without` (or nobody: -1) has no shared memory.
std::vector<int> agreed(int without) {
  MemoryStore store;
  const Settings settings;
  const std::vector<Card> cards = cards_of("aab");
  std::vector<std::vector<int>> hosts(cards.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      RollCall roll_call(store, rank, 3, Deadline::after(std::chrono::seconds(30)));
      const Session session = Session::begin(roll_call, settings);
      hosts[rank] = agree_on_hosts(session, cards, rank != without);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(hosts[0], hosts[1]);
  EXPECT_EQ(hosts[0], hosts[2]);
  return hosts[0];
}

TEST(Hosts, CountOnlyWhereEveryHostSharesMemory) {
  EXPECT_EQ(agreed(-1), (std::vector<int>{0, 2}));
  for (int without = 0; without < 3; ++without) EXPECT_TRUE(agreed(without).empty()) << "rank " << without;
}

}  // namespace
}  // namespace ringdp::comm
