// Test support: an authority and certificates that it has signed, made by the command `openssl`, once per process.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/settings.h"

namespace ringdp::transport {

class Certificates {
 public:
  static const Certificates& get() {
    static const Certificates made;
    return made;
  }

  bool exist() const { return exist_; }
  // Certificates: "ca", "member" and "expired" signed by it, "other" with "stranger", "bare" signed by itself only;
  // "<name>.key" their keys, "locked.key" that of member with a passphrase.
  std::string operator[](const std::string& name) const { return (folder_ / name).string(); }

  // `settings` with TLS of this certificate.
  Settings put_into(Settings settings, const std::string& name = "member", const std::string& authority = "ca") const {
    settings.tls_cert = (*this)[name];
    settings.tls_key = (*this)[name + ".key"];
    settings.tls_ca = (*this)[authority];
    return settings;
  }

 private:
  Certificates() : folder_(testing::TempDir() + "ringdp-certificates-" + std::to_string(::getpid())) {
    std::filesystem::create_directories(folder_);
    exist_ = sign_self("ca") && sign_self("other") && sign_self("bare") && sign("member", "ca", 1) &&
             sign("expired", "ca", -1) && sign("stranger", "other", 1) &&
             run("ec -aes128 -passout pass:x -in member.key -out locked.key");
  }
  ~Certificates() { std::filesystem::remove_all(folder_); }

  static std::string new_key(const std::string& name) {
    return " -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=" + name + " -keyout " + name + ".key";
  }
  bool sign_self(const std::string& name) const { return run("req -x509 -days 2 -out " + name + new_key(name)); }
  bool sign(const std::string& name, const std::string& authority, int days) const {
    return run("req -new -out " + name + ".csr" + new_key(name)) &&
           run("x509 -req -in " + name + ".csr -CA " + authority + " -CAkey " + authority + ".key -set_serial 1" +
               " -days " + std::to_string(days) + " -out " + name);
  }
  bool run(const std::string& command) const {
    return std::system(("cd '" + folder_.string() + "' && openssl " + command + " 2>/dev/null").c_str()) == 0;
  }

  const std::filesystem::path folder_;
  bool exist_ = false;
};

#define RINGDP_NEEDS_CERTIFICATES()                                                \
  do {                                                                             \
    if (::ringdp::transport::Certificates::get().exist()) break;                   \
    GTEST_SKIP() << "the command `openssl` is not here, or makes no certificates"; \
  } while (false)

}  // namespace ringdp::transport
