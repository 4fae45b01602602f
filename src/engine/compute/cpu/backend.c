/* The CPU backend as a table. It works in the machine's memory, at once: there is nothing to
 * prepare, to record or to wait for. */
#include "engine/compute/cpu/backend.h"

static bool check(const struct compute_options *options, struct error *err)
{
    const struct cpu_kernels *kernels;
    return kernels_choose(options->cpu, &kernels, err);
}

const struct compute_backend cpu_backend = {
    .name = "cpu",
    .check = check,
    .create = cpu_new,
    .scratch_bytes = cpu_scratch_bytes,
    .create_beside = cpu_new_beside,
    .free = cpu_free,
    .instance_name = cpu_name,
    .cpu_name = cpu_kernels_name,
    .threads = cpu_threads,
    .kv_new = cpu_kv_new,
    .kv_free = cpu_kv_free,
    .kv_bytes = cpu_kv_bytes,
    .kv_need = cpu_kv_need,
    .embed = cpu_embed,
    .attention = cpu_attention,
    .ffn = cpu_ffn,
    .head = cpu_head,
    .taps_new = cpu_taps_new,
    .taps_free = cpu_taps_free,
    .taps_bytes = cpu_taps_bytes,
    .tap = cpu_tap,
    .context = cpu_context,
    .append = cpu_append,
    .read_taps = cpu_read_taps,
    .read_rows = cpu_read_rows,
    .set_meter = cpu_set_meter,
    .get_meter = cpu_get_meter,
    .roofline_read = cpu_roofline_read,
    .roofline_peak = cpu_roofline_peak,
};
