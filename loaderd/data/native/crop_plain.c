/* For any machine. */
#include "crop_back.h"
#include "crop_codes.h"
#include "crop_colours.h"
#include "crop_weave.h"

const Ways plain_ways = {read_blocks, along_columns, along_rows, bytes, between, blend, between_lines, rgb, interleave};
