/* The files as they are, found from the root of the tree, where make runs (the Makefile knows that
 * this object depends on them). */
#include "judge/page/assets.h"

#define EMBED(name, file)                                                                          \
    __asm__(".pushsection .rodata\n"                                                               \
            ".global " #name "\n" #name ":\n"                                                      \
            ".incbin \"" file "\"\n"                                                               \
            ".byte 0\n"                                                                            \
            ".popsection\n")

EMBED(page_style, "src/judge/page/page.css");
EMBED(page_script, "src/judge/page/page.js");
