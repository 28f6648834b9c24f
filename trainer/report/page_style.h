#pragma once

namespace trireme::report {

/// The style sheet of a report: light and dark, from a phone to a wide screen.
extern const char* const kPageStyle;

/// The script of a report, which shows values at the cursor. The page is complete without it.
extern const char* const kPageScript;

/// Source of kPageScript in the page's content security policy: "sha256-..." of the script. No other script runs.
extern const char* const kPageScriptSource;

}  // namespace trireme::report
