#include "arena/fetch/url.h"

#include "base/buffer.h"

#include <curl/curl.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct parts {
    CURLU *url;
    char *scheme, *host, *port;
};

static bool open_parts(struct parts *p, const char *url)
{
    *p = (struct parts){.url = curl_url()};
    return p->url && curl_url_set(p->url, CURLUPART_URL, url, 0) == CURLUE_OK &&
           curl_url_get(p->url, CURLUPART_SCHEME, &p->scheme, 0) == CURLUE_OK &&
           curl_url_get(p->url, CURLUPART_HOST, &p->host, 0) == CURLUE_OK &&
           curl_url_get(p->url, CURLUPART_PORT, &p->port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
           (strcasecmp(p->scheme, "http") == 0 || strcasecmp(p->scheme, "https") == 0);
}

static void close_parts(struct parts *p)
{
    curl_free(p->scheme);
    curl_free(p->host);
    curl_free(p->port);
    curl_url_cleanup(p->url);
}

bool fetch_url_check_base(const char *name, const char *url, struct error *err)
{
    struct parts p;
    const bool ok = open_parts(&p, url) && !strpbrk(url, "?# \t\r\n");
    close_parts(&p);
    if (ok)
        return true;
    struct arena a = {0};
    error_set(err, "USAGE", "a base is an http or https URL without query");
    error_at(err, NULL, name, strchr(url, '@') ? "(not shown)" : fetch_url_shown(&a, url));
    arena_free(&a);
    return false;
}

const char *fetch_url_of_file(struct arena *a, const char *base, const char *path)
{
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    struct buffer b = {0};
    size_t n = strlen(base);
    while (n > 0 && base[n - 1] == '/')
        n--;
    buffer_append(&b, base, n);
    buffer_char(&b, '/');
    for (; *path; path++) {
        if (strchr(plain, *path))
            buffer_char(&b, *path);
        else
            buffer_printf(&b, "%%%02X", (unsigned)(unsigned char)*path);
    }
    struct parts p;
    if (open_parts(&p, b.data) &&
        (strcasecmp(p.host, "huggingface.co") == 0 || text_ends(p.host, ".huggingface.co")))
        buffer_text(&b, "?download=true");
    close_parts(&p);
    const char *url = arena_strdup(a, b.data);
    buffer_free(&b);
    return url;
}

bool fetch_url_same_origin(const char *a, const char *b)
{
    struct parts x, y;
    const bool both = open_parts(&x, a) & open_parts(&y, b);
    const bool same = both && strcasecmp(x.scheme, y.scheme) == 0 &&
                      strcasecmp(x.host, y.host) == 0 && strcmp(x.port, y.port) == 0;
    close_parts(&x);
    close_parts(&y);
    return same;
}

bool fetch_url_may_follow(const char *from, const char *to)
{
    struct parts x, y;
    const bool both = open_parts(&x, from) & open_parts(&y, to);
    const bool may =
        both && (strcasecmp(x.scheme, "https") != 0 || strcasecmp(y.scheme, "https") == 0);
    close_parts(&x);
    close_parts(&y);
    return may;
}

const char *fetch_url_shown(struct arena *a, const char *url)
{
    /* A query may hold "://" too; and libcurl takes one slash for two. */
    const char *host = url, *colon = url + strcspn(url, ":/?#");
    if (colon[0] == ':' && colon[1] == '/')
        host = colon + 1 + strspn(colon + 1, "/");
    const size_t authority = strcspn(host, "/?#"), whole = strcspn(host, "?#");
    for (const char *p = host + authority; p-- > host;) /* a password may hold an '@' of its own */
        if (*p == '@')
            return arena_printf(a, "%.*s%.*s", (int)(host - url), url, (int)(host + whole - p - 1),
                                p + 1);
    return arena_strndup(a, url, (size_t)(host - url) + whole);
}
