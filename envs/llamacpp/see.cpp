// An image before a model's prompt, by llama.cpp's own library for images, for ctypes.

#include "llama.h"
#include "mtmd-helper.h"
#include "mtmd.h"

#include <algorithm>
#include <memory>

// The part for images of `file`, beside the text model that it belongs to; null where it cannot be loaded.
extern "C" void * ingot_eyes(const char * file, const llama_model * model, int threads) {
    auto settings = mtmd_context_params_default();
    settings.use_gpu = settings.print_timings = settings.warmup = false;
    settings.n_threads = threads;
    settings.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    return mtmd_init_from_file(file, model, settings);
}

extern "C" void ingot_eyes_close(void * eyes) { mtmd_free((mtmd_context *) eyes); }

extern "C" bool ingot_eyes_see(void * eyes) { return mtmd_support_vision((mtmd_context *) eyes); }

// Decodes `text`, whose marker stands for the image of `rgb` [height, width, 3]; its logits are then
// llama_get_logits_ith(context, -1).  `ids` gets the tokens, -1 for each that is the image's; `next` the
// position after the last.  How many tokens; negative where it failed or `room` is too little.
extern "C" int ingot_see(void * eyes, llama_context * context, const char * text, const unsigned char * rgb,
                         int width, int height, int batch, int * ids, int room, int * next) {
    auto * see = (mtmd_context *) eyes;
    std::unique_ptr<mtmd_bitmap, decltype(&mtmd_bitmap_free)> image(
        mtmd_bitmap_init(width, height, rgb), mtmd_bitmap_free);
    std::unique_ptr<mtmd_input_chunks, decltype(&mtmd_input_chunks_free)> chunks(
        mtmd_input_chunks_init(), mtmd_input_chunks_free);
    mtmd_input_text said = mtmd_input_text();
    said.text = text;
    said.text_len = std::char_traits<char>::length(text);
    said.add_special = said.parse_special = true;
    const mtmd_bitmap * images[] = {image.get()};
    if (mtmd_tokenize(see, chunks.get(), &said, images, 1)) return -1;
    int count = 0;
    for (size_t n = 0; n < mtmd_input_chunks_size(chunks.get()); n++) {
        auto * chunk = mtmd_input_chunks_get(chunks.get(), n);
        size_t length = mtmd_input_chunk_get_n_tokens(chunk);
        if (count + (int) length > room) return -2;
        if (mtmd_input_chunk_get_type(chunk) == MTMD_INPUT_CHUNK_TYPE_TEXT) {
            auto * tokens = mtmd_input_chunk_get_tokens_text(chunk, &length);
            std::copy(tokens, tokens + length, ids + count);
        } else {
            std::fill(ids + count, ids + count + length, -1);
        }
        count += (int) length;
    }
    llama_pos end = 0;
    if (mtmd_helper_eval_chunks(see, context, chunks.get(), 0, 0, batch, true, &end)) return -3;
    *next = end;
    return count;
}
