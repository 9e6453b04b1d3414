// The version, a cache, and the line that explains an error.
#include <stdio.h>
#include <string.h>

#include "kvsieve/kvsieve_c.h"

int main(void) {
  const kvs_layer layer = {.struct_size = sizeof(layer),
                           .query_heads = 2,
                           .kv_heads = 1,
                           .key_dim = 16,
                           .value_dim = 16,
                           .scale = 0.25F};
  kvs_cache_args args = {
      .struct_size = sizeof(args), .spec = "none | kv=int8", .layers = &layer, .layer_count = 1};
  kvs_cache* cache = NULL;
  if (strcmp(kvs_version(), EXPECTED_VERSION) != 0) return 1;
  if (kvs_cache_create(&args, &cache) != KVS_OK) return 2;
  kvs_cache_destroy(cache);
  args.spec = "none | kv=int9";
  if (kvs_cache_create(&args, &cache) != KVS_INVALID_ARGUMENT) return 3;
  printf("kvsieve %s from C: %s\n", kvs_version(), kvs_last_error());
  return 0;
}
