// The OpenSSL 3 functions that TLS needs, looked up at run time on first use: the build needs no headers, a run without
// TLS needs no library, and a process that has already loaded libssl shares that copy.
#pragma once
#include <cstddef>
#include <cstdint>

// As in OpenSSL's headers; tests/cpp/transport/tcp/tls_test.cc compares them.
struct ssl_st;
struct ssl_ctx_st;
struct ssl_method_st;
struct bio_st;
struct bio_method_st;
struct ossl_init_settings_st;
struct x509_store_ctx_st;

namespace ringdp::transport {

// result, name, parameters
#define RD_OPENSSL_FUNCTIONS(of)                                                                                       \
  of(int, OPENSSL_init_ssl, (uint64_t, const ossl_init_settings_st*)) of(const ssl_method_st*, TLS_method, ())         \
      of(ssl_ctx_st*, SSL_CTX_new, (const ssl_method_st*)) of(void, SSL_CTX_free, (ssl_ctx_st*)) of(                   \
          long, SSL_CTX_ctrl, (ssl_ctx_st*, int, long, void*)) of(int, SSL_CTX_set_num_tickets, (ssl_ctx_st*, size_t)) \
          of(void, SSL_CTX_set_verify, (ssl_ctx_st*, int, int (*)(int, x509_store_ctx_st*))) of(                       \
              void, SSL_CTX_set_default_passwd_cb, (ssl_ctx_st*, int (*)(char*, int, int, void*)))                     \
              of(void, SSL_CTX_set_default_read_buffer_len, (ssl_ctx_st*, size_t)) of(                                 \
                  int, SSL_CTX_use_certificate_chain_file,                                                             \
                  (ssl_ctx_st*, const char*)) of(int, SSL_CTX_use_PrivateKey_file, (ssl_ctx_st*, const char*, int))    \
                  of(int, SSL_CTX_load_verify_locations, (ssl_ctx_st*, const char*, const char*)) of(                  \
                      ssl_st*, SSL_new, (ssl_ctx_st*)) of(void, SSL_free, (ssl_st*))                                   \
                      of(void, SSL_set_accept_state, (ssl_st*)) of(void, SSL_set_connect_state, (ssl_st*))             \
                          of(void, SSL_set_bio, (ssl_st*, bio_st*, bio_st*)) of(int, SSL_do_handshake, (ssl_st*)) of(  \
                              int, SSL_read_ex, (ssl_st*, void*, size_t, size_t*))                                     \
                              of(int, SSL_write_ex, (ssl_st*, const void*, size_t, size_t*)) of(                       \
                                  int, SSL_has_pending, (const ssl_st*)) of(int, SSL_key_update, (ssl_st*, int))       \
                                  of(long, SSL_get_verify_result, (const ssl_st*)) of(                                 \
                                      const char*, X509_verify_cert_error_string, (long))                              \
                                      of(bio_method_st*, BIO_meth_new, (int, const char*)) of(                         \
                                          int, BIO_meth_set_write,                                                     \
                                          (bio_method_st*, int (*)(bio_st*, const char*, int)))                        \
                                          of(int, BIO_meth_set_read, (bio_method_st*, int (*)(bio_st*, char*, int)))   \
                                              of(int, BIO_meth_set_ctrl,                                               \
                                                 (bio_method_st*, long (*)(bio_st*, int, long, void*)))                \
                                                  of(bio_st*, BIO_new, (const bio_method_st*))                         \
                                                      of(void, BIO_set_init, (bio_st*, int))                           \
                                                          of(void, BIO_set_data, (bio_st*, void*))                     \
                                                              of(void*, BIO_get_data, (bio_st*))                       \
                                                                  of(void, BIO_set_flags, (bio_st*, int))              \
                                                                      of(void, BIO_clear_flags, (bio_st*, int))        \
                                                                          of(unsigned long, ERR_get_error, ()) of(     \
                                                                              void, ERR_clear_error, ())               \
                                                                              of(const char*, ERR_reason_error_string, \
                                                                                 (unsigned long))

struct OpenSsl {
#define RD_POINTER(result, name, parameters) result(*name) parameters;
  RD_OPENSSL_FUNCTIONS(RD_POINTER)
#undef RD_POINTER
};

// Any thread. `path`: of libssl; empty: libssl.so.3. The first one found is used for the life of the process.
// Error(kInvalidArgument) when there is none, or only one of another release.
const OpenSsl& openssl(const char* path = "");

}  // namespace ringdp::transport
