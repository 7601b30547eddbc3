// A chat template rendered by llama.cpp's own engine, for ctypes: libllama itself has none for templates.

#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "json.h"

#include <ctime>
#include <string>

static thread_local std::string text;

// `values` is a JSON object: messages, bos_token, ...; `now` are seconds of 1970, for templates that say
// the date.  The text, or what is wrong: `failed` says which.
extern "C" const char * ingot_render(const char * source, const char * values, long long now, int * failed) {
    try {
        jinja::lexer lexer;
        auto program = jinja::parse_from_tokens(lexer.tokenize(source));
        jinja::context context(source);
        context.current_time = (std::time_t) now;
        jinja::global_from_json(context, common_json::parse(values), false);
        jinja::runtime runtime(context);
        text = jinja::runtime::gather_string_parts(runtime.execute(program))->as_string().str();
        *failed = 0;
    } catch (const std::exception & error) {
        text = error.what();
        *failed = 1;
    }
    return text.c_str();
}
