#pragma once

// Whether this CPU multiplies tiles of bfloat16 and int8 (AMX) and the operating system lets this process do so.
bool matrix_unit();
