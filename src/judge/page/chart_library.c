#include "judge/page/chart_library.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

enum { LIBRARY_BYTES_MAX = 4 << 20 };

const char *chart_library_notice(void)
{
    /* The licence of Chart.js and of @kurkle/color, which its file holds: Expat. */
    return "Chart.js: Copyright (c) 2014-2022 Chart.js Contributors. @kurkle/color: Copyright (c) "
           "2018-2021 Jukka Kurkela.\n\n"
           "Permission is hereby granted, free of charge, to any person obtaining a copy of this "
           "software and associated documentation files (the \"Software\"), to deal in the "
           "Software without restriction, including without limitation the rights to use, copy, "
           "modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, "
           "and to permit persons to whom the Software is furnished to do so, subject to the "
           "following conditions:\n\n"
           "The above copyright notice and this permission notice shall be included in all copies "
           "or substantial portions of the Software.\n\n"
           "THE SOFTWARE IS PROVIDED \"AS IS\", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, "
           "INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A "
           "PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT "
           "HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF "
           "CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE "
           "OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.";
}

/* Debian and Ubuntu; the last two are where version 4 puts it. */
static const char *find(void)
{
    static const char *const places[] = {
        "/usr/share/javascript/chart.js/chart.min.js",
        "/usr/share/nodejs/chart.js/dist/chart.min.js",
        "/usr/share/javascript/chart.js/chart.umd.js",
        "/usr/share/nodejs/chart.js/dist/chart.umd.js",
    };
    for (size_t i = 0; i < COUNT_OF(places); i++)
        if (file_exists(places[i]))
            return places[i];
    return NULL;
}

static bool holds(const struct buffer *b, const char *what)
{
    const size_t length = strlen(what);
    for (size_t i = 0; i + length <= b->length; i++)
        if (strncasecmp(b->data + i, what, length) == 0)
            return true;
    return false;
}

static bool invalid(struct error *err, const char *path, const char *what)
{
    error_set(err, "CHART-LIBRARY-INVALID", "%s", what);
    return error_at(err, path, NULL, NULL);
}

/* Ends of lines as a browser reads them: what it reads is what it takes the digest of. */
static void drop_returns(struct buffer *b)
{
    size_t kept = 0;
    for (size_t i = 0; i < b->length; i++)
        if (b->data[i] != '\r')
            b->data[kept++] = b->data[i];
    b->length = kept;
    if (b->data)
        b->data[kept] = '\0';
}

bool chart_library_read(struct buffer *out, struct error *err)
{
    const char *path = getenv("MLXFAST_CHART_JS");
    path = path && *path ? path : find();
    if (!path || !file_exists(path)) {
        error_set(err, "CHART-LIBRARY-MISSING",
                  "Chart.js is not here: install Debian's package libjs-chart.js, name its file in "
                  "MLXFAST_CHART_JS, or ask for the tables alone with --no-html");
        return error_at(err, path, NULL, NULL);
    }
    if (!file_read(path, LIBRARY_BYTES_MAX, out, err))
        return false;
    if (!out->data || !utf8_valid(out->data, out->length) || memchr(out->data, 0, out->length))
        return invalid(err, path, "the file is no text");
    if (!holds(out, "Chart.js v3.") && !holds(out, "Chart.js v4."))
        return invalid(err, path, "the file is not Chart.js of version 3 or 4");
    if (holds(out, "</script") || holds(out, "<!--"))
        return invalid(err, path, "the file holds what would end its place in a page");
    drop_returns(out);
    return true;
}
