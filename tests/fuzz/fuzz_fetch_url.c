/* Two URLs and a path, one a line: credentials never go where they do not belong, nothing secret is
 * shown, and a file's URL stays below its base. */
#include "arena/fetch/url.h"
#include "base/buffer.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds)
{
    if (!holds)
        abort();
}

/* libcurl's own opinion, asked in another way. */
static char *part_of(const char *url, CURLUPart part)
{
    char *text = NULL;
    CURLU *u = curl_url();
    if (curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK)
        curl_url_get(u, part, &text, part == CURLUPART_PORT ? CURLU_DEFAULT_PORT : 0);
    curl_url_cleanup(u);
    return text;
}

static bool same_part(const char *x, const char *y, CURLUPart part, bool folded)
{
    char *a = part_of(x, part), *b = part_of(y, part);
    const bool same = a && b && (folded ? strcasecmp(a, b) : strcmp(a, b)) == 0;
    curl_free(a);
    curl_free(b);
    return same;
}

static void look_at_base(struct arena *a, const char *base, const char *path)
{
    struct error err = {0};
    if (!fetch_url_check_base("--base-url", base, &err)) {
        require(strcmp(err.name, "USAGE") == 0 && err.message[0]);
        require(!strchr(base, '@') || !strchr(err.value, '@'));
        return;
    }
    const char *url = fetch_url_of_file(a, base, path);
    require(fetch_url_same_origin(base, url) && fetch_url_same_origin(url, base));
    require(fetch_url_may_follow(base, url));
    require(!strpbrk(url, "# \t\r\n"));
    for (const char *p = url; *p; p++)
        require((unsigned char)*p > ' ' || p < url + strlen(base));
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        n--;
    require(strncmp(url, base, n) == 0 && url[n] == '/');
}

static void look_at_shown(struct arena *a, const char *url)
{
    const char *shown = fetch_url_shown(a, url);
    require(strlen(shown) <= strlen(url) && !strpbrk(shown, "?#"));
    /* Of what can be opened: not the user, not the password. */
    char *host = part_of(url, CURLUPART_HOST), *user = part_of(shown, CURLUPART_USER);
    if (host) {
        require(!user);
        require(fetch_url_same_origin(url, shown) || !fetch_url_same_origin(url, url));
    }
    curl_free(host);
    curl_free(user);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct arena a = {0};
    char *text = arena_strndup(&a, (const char *)data, size), *lines[3] = {text, "", ""};
    for (int i = 1; i < 3; i++) {
        char *end = strchr(lines[i - 1], '\n');
        if (!end)
            break;
        *end = '\0';
        lines[i] = end + 1;
    }
    if (fetch_url_same_origin(lines[0], lines[1])) {
        require(fetch_url_same_origin(lines[1], lines[0]));
        require(same_part(lines[0], lines[1], CURLUPART_SCHEME, true));
        require(same_part(lines[0], lines[1], CURLUPART_HOST, true));
        require(same_part(lines[0], lines[1], CURLUPART_PORT, false));
    }
    if (fetch_url_may_follow(lines[0], lines[1])) {
        char *from = part_of(lines[0], CURLUPART_SCHEME), *to = part_of(lines[1], CURLUPART_SCHEME);
        require(from && to && text_starts(to, "http"));
        require(strcmp(from, "https") != 0 || strcmp(to, "https") == 0);
        curl_free(from);
        curl_free(to);
    }
    look_at_base(&a, lines[0], lines[2]);
    look_at_shown(&a, lines[0]);
    look_at_shown(&a, lines[1]);
    arena_free(&a);
    return 0;
}
