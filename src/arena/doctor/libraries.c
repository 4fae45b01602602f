#define PCRE2_CODE_UNIT_WIDTH 8
#include "arena/doctor/libraries.h"

#include <curl/curl.h>
#include <jansson.h>
#include <openssl/crypto.h>
#include <openssl/opensslv.h>
#include <pcre2.h>
#include <utf8proc.h>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

void libraries_read(struct machine *m, struct arena *a)
{
    enum { COUNT = 5 };
    struct library *all = arena_array(a, COUNT, sizeof *all);
    char pcre2[64] = "";
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    all[0] = (struct library){"jansson", JANSSON_VERSION, jansson_version_str()};
    all[1] = (struct library){"OpenSSL",
                              arena_printf(a, "%d.%d.%d", OPENSSL_VERSION_MAJOR,
                                           OPENSSL_VERSION_MINOR, OPENSSL_VERSION_PATCH),
                              OpenSSL_version(OPENSSL_VERSION_STRING)};
    all[2] =
        (struct library){"libcurl", LIBCURL_VERSION, curl_version_info(CURLVERSION_NOW)->version};
    all[3] =
        (struct library){"PCRE2", TEXT(PCRE2_MAJOR) "." TEXT(PCRE2_MINOR), arena_strdup(a, pcre2)};
    all[4] = (struct library){"utf8proc",
                              TEXT(UTF8PROC_VERSION_MAJOR) "." TEXT(
                                  UTF8PROC_VERSION_MINOR) "." TEXT(UTF8PROC_VERSION_PATCH),
                              utf8proc_version()};
    m->libraries = all;
    m->library_count = COUNT;
}
