#include "collective/note_exchange.h"

#include <gtest/gtest.h>

#include "world.h"

namespace ringdp::collective::testing {
namespace {

TEST(NoteExchange, NotesAreOnLinksOnlyWhereNoArenaHoldsAllRanks) {
  for (const Case& c : kCases) {
    World world(3, c, 100);
    world.start(1, {1, 1, 1});
    world.run();
    const uint64_t on_links = c.shared ? 0 : 2 * sizeof(transport::Note);
    for (int r = 0; r < 3; ++r) EXPECT_EQ(world.executor(r).totals().header_bytes_sent, on_links);
  }
}

// A rank may have heard all others before its own note is out: it must still send it.
TEST(NoteExchange, TheOwnNoteGoesOutThoughItsLinksWereFullWhileThePeersNotesCame) {
  for (const Case& c : kCases) {
    for (int refusals = 0; refusals < 6; ++refusals) {
      World world(3, c, 50, refusals);
      world.start(1, {1, 1, 1});
      for (int turn = 0; turn < 1000 && !world.done(); ++turn) {
        for (const int rank : {2, 1, 0}) world.advance(rank);
      }
      ASSERT_TRUE(world.done()) << "stuck after " << refusals << " refusals";
    }
  }
}

TEST(NoteExchange, NothingOfAMismatchingPeerIsUsed) {
  for (const Case& c : kCases) {
    World world(3, c, 50);
    world.start(1, {1, 2, 1});
    std::vector<bool> refused(3, false);
    for (int turn = 0; turn < 100; ++turn) {
      for (int r = 0; r < 3; ++r) {
        try {
          if (!refused[r]) world.advance(r);
        } catch (const Error& error) {
          EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
          refused[r] = true;
        }
      }
    }
    for (int r = 0; r < 3; ++r) {
      EXPECT_TRUE(refused[r]) << "rank " << r;
      EXPECT_FALSE(world.executor(r).done());
    }
  }
}

TEST(NoteExchange, NamesTheRanksThatHaveNotCome) {
  for (const Case& c : kCases) {
    World world(3, c, 50);
    world.start(1, {1, 1, 1});
    for (int turn = 0; turn < 50; ++turn) {
      world.advance(0);
      world.advance(2);
    }
    EXPECT_EQ(world.executor(0).silent_ranks(), std::vector<int>{1});
    EXPECT_FALSE(world.executor(0).done());
    EXPECT_FALSE(world.executor(0).awaited_ranks().empty());
    world.run();
    EXPECT_TRUE(world.executor(0).silent_ranks().empty());
    EXPECT_TRUE(world.executor(0).awaited_ranks().empty());
  }
}

}  // namespace
}  // namespace ringdp::collective::testing
