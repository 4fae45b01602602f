/* The INT8 rows of a table of kernels: a part of kernels_*.c, after every kernels_int8.h and before
 * kernels_simd.h. INT8_PACKED: rows of ACTIVATIONS_BF16 are in the packed form. */

static void group_sums(enum activations a, int n, void *prepared)
{
    if (INT8_PACKED && a == ACTIVATIONS_BF16)
        INT8_BF16(group_sums)(prepared, n);
    else
        split_group_sums(prepared, n);
}

static void linear_int8(enum activations a, const struct linear_call *call)
{
    const struct weight_matrix *w = call->w;
    const size_t groups = (size_t)w->in / AFFINE_GROUP * sizeof(uint16_t);
    const struct dot_call c = {.w = (const uint8_t *)w->data + (size_t)call->first * (size_t)w->in,
                               .w_stride = (size_t)w->in,
                               .scales = w->scales + (size_t)call->first * groups,
                               .biases = w->biases + (size_t)call->first * groups,
                               .scales_stride = groups,
                               .in = w->in,
                               .x = call->x,
                               .y = call->y + call->first,
                               .y_stride = call->y_stride,
                               .round = a == ACTIVATIONS_BF16,
                               .add = call->add};
    if (INT8_PACKED && a == ACTIVATIONS_BF16)
        INT8_BF16(int8)(&c, call->rows, call->count);
    else
        split_int8(&c, call->rows, call->count);
}
