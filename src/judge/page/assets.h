/* page.css and page.js, built into the program; each ends with a NUL. */
#ifndef MLXFAST_JUDGE_PAGE_ASSETS_H
#define MLXFAST_JUDGE_PAGE_ASSETS_H

extern const char page_style[], page_script[];

#endif
