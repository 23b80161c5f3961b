#include "comm/card.h"

#include <gtest/gtest.h>

#include "transport/hello.h"
#include "transport/unix_socket.h"

namespace ringdp::comm {
namespace {

Card sample_card() {
  return {transport::local_identity(), transport::UnixListener::open().name, shared_settings(Settings{}), {}, 0, 3};
}

TEST(Card, SurvivesTheStore) {
  for (const bool with_socket : {true, false}) {
    Card card = sample_card();
    if (!with_socket) card.socket_name.clear();
    card.thresholds.direct_bytes += with_socket;
    card.heap_bytes = with_socket ? int64_t{1} << 40 : 0;
    const auto copy = card_from_text(to_text(card));
    ASSERT_TRUE(copy);
    EXPECT_EQ(to_line(copy->identity), to_line(card.identity));
    EXPECT_EQ(copy->socket_name, card.socket_name);
    EXPECT_EQ(copy->settings, card.settings);
    EXPECT_EQ(copy->heap_bytes, card.heap_bytes);
    EXPECT_EQ(copy->world, card.world);
    EXPECT_EQ(copy->thresholds.direct_bytes, card.thresholds.direct_bytes);
  }
}

TEST(Card, MalformedTextIsRefused) {
  const Card card = sample_card();
  const std::string good = to_text(card), title = good.substr(0, good.find('\n')), limits = to_text(card.thresholds) + "\n";
  const std::string line = title + "\n" + to_line(card.identity), untitled = good.substr(title.size() + 1);
  Card foreign_socket = card;
  foreign_socket.socket_name = "/tmp/elsewhere";
  for (const std::string& bad : {std::string(), line, line + "\n", line + "\n" + card.socket_name, "\n" + good,
                                 line + "\n\n" + card.settings, line + "\n-\n" + card.settings,
                                 line + "\n-\n-4096\n" + limits + card.settings, line + "\n-\n4k\n" + limits + card.settings,
                                 line + "\n-\n0\n" + card.settings, line + "\n-\n0\ntree_bytes=1\n" + card.settings,
                                 "x" + good, to_text(foreign_socket), untitled, title + "x\n" + untitled,
                                 "ringdp " + untitled, "ringdp x 3\n" + untitled, "ringdp 1000000 3\n" + untitled,
                                 good + std::string(4096, 'x'), std::string(100, '\n'), std::string(50, '\0')}) {
    EXPECT_FALSE(card_from_text(bad)) << bad;
  }
}

TEST(Card, TheProtocolOfAnotherBuildCanBeRead) {
  EXPECT_EQ(protocol_of_card(to_text(sample_card())), transport::kProtocolVersion);
  EXPECT_EQ(protocol_of_card("ringdp 1000000 whatever\nit writes"), 1000000u);
  for (const char* other : {"", "ringdp", "ringdp x", "ringdp -1 3", "identity-1 host"}) EXPECT_FALSE(protocol_of_card(other)) << other;
}

TEST(Card, SettingsThatMustAgreeChangeTheText) {
  const std::string plain = shared_settings(Settings{});
  std::vector<Settings> changed(7);
  changed[0].transport = TransportChoice::kTcp;
  changed[1].algorithm = AlgorithmChoice::kRing;
  changed[2].order = Order::kRotated;
  changed[3].segment_bytes *= 2;
  changed[4].slot_bytes = 4096;
  changed[5].link_bytes *= 2;
  changed[6].heap_bytes *= 2;
  for (const Settings& settings : changed) EXPECT_NE(shared_settings(settings), plain);
  Settings own_affair;
  own_affair.spin_us += 1;
  own_affair.thresholds.direct_bytes += 1;
  own_affair.socket_ifname = "eth0";
  EXPECT_EQ(shared_settings(own_affair), plain) << "these may differ between ranks";
}

}  // namespace
}  // namespace ringdp::comm
