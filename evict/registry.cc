#include "kvsieve/evict.h"
