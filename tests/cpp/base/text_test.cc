#include "base/text.h"

#include <gtest/gtest.h>

#include <random>

#include "base/dtype.h"

namespace ringdp {
namespace {

TEST(Named, EveryEnumeratorIsFoundByItsName) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(enumerator_named<DType>(name_of(dtype), kDTypeCount, "a dtype"), dtype);
  }
}

TEST(Named, ANameThatIsNoneIsRefusedWithTheKnownOnes) {
  try {
    enumerator_named<ReduceOp>("sum", 2, "a reduce operation");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_STREQ(error.what(), "'sum' is not a reduce operation (expected one of: SUM, AVG)");
  }
}

TEST(Printable, KeepsWhatCanBeShown) {
  for (const std::string text :
       {"", "plain", "two\nlines", "caf\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "\xC2\xA0"}) {
    EXPECT_EQ(printable(text, 100), text);
  }
}

TEST(Printable, EscapesControlCharacters) {
  EXPECT_EQ(printable("red \x1b[31m\r\a\x7f", 100), "red \\x1b[31m\\x0d\\x07\\x7f");
  EXPECT_EQ(printable(std::string_view("\0", 1), 100), "\\x00");
  EXPECT_EQ(printable("\xC2\x9B", 100), "\\xc2\\x9b");  // the eight-bit escape
}

TEST(Printable, EscapesWhatIsNoUtf8) {
  EXPECT_EQ(printable("\x80", 100), "\\x80");
  EXPECT_EQ(printable("\xC0\xAF", 100), "\\xc0\\xaf");                    // overlong
  EXPECT_EQ(printable("\xE0\x80\x80", 100), "\\xe0\\x80\\x80");           // overlong
  EXPECT_EQ(printable("\xED\xA0\x80", 100), "\\xed\\xa0\\x80");           // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80", 100), "\\xf4\\x90\\x80\\x80");  // beyond the last
  EXPECT_EQ(printable("a\xE2\x82", 100), "a\\xe2\\x82");                  // cut
}

TEST(Printable, IsCutBetweenCharacters) {
  EXPECT_EQ(printable("abc", 2), "ab");
  EXPECT_EQ(printable("a\xC3\xA9", 2), "a");
  EXPECT_EQ(printable("a\x1b", 4), "a");
}

// What is shown can be shown again: nothing is left to escape.
TEST(Printable, OfAnyBytesIsPrintable) {
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes(random() % 12, '\0');
    for (char& c : bytes) c = static_cast<char>(random() % 3 == 0 ? 0x80 + random() % 128 : random());
    const std::string shown = printable(bytes, 20);
    ASSERT_LE(shown.size(), 20u);
    ASSERT_EQ(printable(shown, 20), shown);
  }
}

}  // namespace

}  // namespace ringdp
