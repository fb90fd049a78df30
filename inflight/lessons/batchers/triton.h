/* What a batching library needs of Triton's interface for backends (tritonbackend.h), without its headers.
 *
 * The types are opaque: the library is handed pointers and hands them on. Where the functions are, the linker need not
 * know: the library is loaded into tritonserver, which has them.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TRITONSERVER_Error TRITONSERVER_Error;
typedef struct TRITONBACKEND_Model TRITONBACKEND_Model;
typedef struct TRITONBACKEND_Request TRITONBACKEND_Request;
typedef struct TRITONBACKEND_Input TRITONBACKEND_Input;
typedef struct TRITONBACKEND_Batcher TRITONBACKEND_Batcher;  /* whatever the library wants to keep for a model */

enum { TRITONSERVER_ERROR_INTERNAL = 1 };

/* Five functions that the library has and Triton calls. NULL stands for success. --------------------------------- */

/* Once, when the model is loaded; what is left in `batcher` is given to every batch of the model. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model);

/* Once, when the model is unloaded. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher);

/* A batch is begun; what is left in `userp` is given to every question about this batch. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** userp);

/* The question: may this request join the batch? False closes the batch, and the request begins the next one. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(TRITONBACKEND_Request* request, void* userp,
                                                           bool* should_include);

/* The batch is on its way to the model. */
TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* userp);

/* Functions that Triton has and the library calls. --------------------------------------------------------------- */

TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* message);

/* An input tensor of a request. */
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name,
                                               TRITONBACKEND_Input** input);

/* One of the buffers with its values. */
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(TRITONBACKEND_Input* input, uint32_t index, const void** buffer,
                                              uint64_t* size, int* memory_type, int64_t* memory_type_id);
