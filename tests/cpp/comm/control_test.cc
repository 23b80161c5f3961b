#include "comm/control.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <random>

#include "base/unique_fd.h"

namespace ringdp::comm {
namespace {

ControlMessage abort_message(size_t text) {
  return {ControlKind::kAbort, ErrorKind::kMismatch, 3, 0, std::string(text, 'x'), 2};
}

void expect_equal(const ControlMessage& a, const ControlMessage& b) {
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.error, b.error);
  EXPECT_EQ(a.culprit, b.culprit);
  EXPECT_EQ(a.seq, b.seq);
  EXPECT_EQ(a.text, b.text);
  EXPECT_EQ(a.origin, b.origin);
}

TEST(Control, MessagesSurviveAnyCutting) {
  const std::vector<ControlMessage> sent = {{ControlKind::kHeartbeat, ErrorKind::kInternal, -1, 0, "", -1},
                                            abort_message(0),
                                            abort_message(kMaxText),
                                            {ControlKind::kGoodbye, ErrorKind::kAborted, 1, 1234567, "", -1}};
  std::string stream;
  for (const auto& m : sent) stream += encode(m);
  for (size_t piece : {size_t{1}, size_t{7}, size_t{24}, size_t{1000}, stream.size()}) {
    ControlParser parser;
    std::vector<ControlMessage> got;
    for (size_t at = 0; at < stream.size(); at += piece) {
      for (auto& m : parser.feed(stream.data() + at, std::min(piece, stream.size() - at))) got.push_back(m);
    }
    ASSERT_EQ(got.size(), sent.size());
    for (size_t i = 0; i < sent.size(); ++i) expect_equal(got[i], sent[i]);
  }
}

TEST(Control, EveryBitCounts) {
  const std::string good = encode(abort_message(9));
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    ControlParser parser;
    EXPECT_THROW(parser.feed(bad.data(), bad.size()), Error) << "bit " << bit;
  }
}

TEST(Control, LongTextIsCut) {
  ControlParser parser;
  const std::string bytes = encode(abort_message(kMaxText + 500));
  EXPECT_EQ(parser.feed(bytes.data(), bytes.size()).at(0).text.size(), kMaxText);
}

TEST(Control, TextIsMadePrintable) {
  ControlParser parser;
  const std::string bytes = encode({ControlKind::kGoodbye, ErrorKind::kAborted, 1, 5, "\x1b[2J\xff", -1});
  EXPECT_EQ(parser.feed(bytes.data(), bytes.size()).at(0).text, "\\x1b[2J\\xff");
}

TEST(Control, GarbageIsRefusedWithoutGrowth) {
  std::mt19937 random(7);
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(64, '\0');
    for (char& c : bytes) c = static_cast<char>(random());
    ControlParser parser;
    EXPECT_THROW(parser.feed(bytes.data(), bytes.size()), Error);
  }
}

TEST(Control, DrainTellsOpenFromClosed) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  UniqueFd mine(ends[0]), theirs(ends[1]);
  ControlParser parser;
  std::vector<ControlMessage> got;
  EXPECT_EQ(drain_control(mine.get(), parser, got), Drained::kOpen);
  send_control(theirs.get(), abort_message(10));
  theirs.reset();
  EXPECT_EQ(drain_control(mine.get(), parser, got), Drained::kClosed);
  ASSERT_EQ(got.size(), 1u);  // what was said before the close is heard
  expect_equal(got[0], abort_message(10));
  send_control(mine.get(), abort_message(10));  // to a closed peer: lost, not fatal
}

}  // namespace
}  // namespace ringdp::comm
