/* SPDX-License-Identifier: MIT
 * The levels of messages: a text begins with its level, as those of printk and sd-daemon(3) do; one
 * that does not is a notice. A text that begins with what others gave needs a level.
 */
#ifndef CAIRN_IO_LEVEL_H
#define CAIRN_IO_LEVEL_H

#define LEVEL_ERROR "<3>" /* data is not where it should be, or is not served */
#define LEVEL_WARNING "<4>" /* somebody should look at it */
#define LEVEL_NOTICE "<5>"
#define LEVEL_INFO "<6>"
#define LEVEL_DEBUG "<7>"

#endif
