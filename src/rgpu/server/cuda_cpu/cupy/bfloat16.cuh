#include "rgpu_cuda.h"  // all of it is there
