#include "kvsieve/codec.h"
