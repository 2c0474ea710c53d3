"""Relations that people have words of their own for: where someone lives, what a thing costs, when a shop opens.

Each can also be told as an attribute ("the job of Ada is ..."), by the nouns that name it.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.phrasings import Phrasings, ways


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact: what it is about, what its values are, and how it is told and asked for."""

    nouns: tuple[str, ...]
    subject: str
    value: str
    statements: Phrasings
    questions: Phrasings


def _relation(
    nouns: str, subject: str, value: str, statements: str, questions: str, held_out: tuple[str, str] = ("", "")
) -> Relation:
    return Relation(
        ways(nouns),
        subject,
        value,
        Phrasings(ways(statements), ways(held_out[0])),
        Phrasings(ways(questions), ways(held_out[1])),
    )


RELATIONS = (
    _relation(
        "home | home town | town | place of residence", "somebody", "place",
        "{y} lives in {z} | {y} lives in {z} | {y} has a house in {z} | {y} moved to {z} | {y} is living in {z} now"
        " | {y} comes home to {z} every evening | {z} is where {y} lives | {z} is home to {y} | {y} settled in {z}"
        " | {y} has lived in {z} for years",
        "where does {y} live | where does {y} live now | in which town does {y} live | where is {y} living"
        " | where is {y}'s home | which town does {y} live in | what place does {y} call home | where did {y} move to"
        " | what town is {y} in | tell me where {y} lives | do you know where {y} lives | where has {y} settled",
        ("{y} found a flat in {z} | {y} has made {z} a home | you can find {y}'s house in {z}",
         "where would i find {y}'s house | whereabouts does {y} live these days"
         " | what is the town that {y} lives in"),
    ),
    _relation(
        "birthplace | place of birth", "somebody", "place",
        "{y} was born in {z} | {y} comes from {z} | {z} is where {y} was born | {y} grew up in {z} | {y} is from {z}"
        " | {y} spent a childhood in {z}",
        "where was {y} born | where does {y} come from | where is {y} from | in which town was {y} born"
        " | where did {y} grow up | what town is {y} from | tell me where {y} was born",
        ("{y} first saw the light in {z} | the birth of {y} was in {z}",
         "which town was {y} born in | what place does {y} come from"),
    ),
    _relation(
        "job | profession | occupation | work", "somebody", "job",
        "{y} works as {z} | {y} is {z} | {y} is {z} by trade | {y} earns a living as {z} | {y} has been {z} for years"
        " | {y} has a job as {z} | {y} became {z} | {y} works as {z} in town | by day {y} is {z}"
        " | {y} is employed as {z}",
        "what does {y} work as | what does {y} do for a living | what is {y}'s profession | what work does {y} do"
        " | what does {y} do | how does {y} earn money | what is {y} by trade | what kind of job does {y} have"
        " | what did {y} become | tell me what {y} does for work",
        ("{y} found work as {z} | they hired {y} as {z} | {y} makes money as {z}",
         "what sort of work is {y} in | what line of work does {y} follow | what did they hire {y} as"),
    ),
    _relation(
        "pet | animal", "somebody", "animal",
        "{y} has {z} | {y} keeps {z} as a pet | {y} has {z} at home | {y} takes care of {z} | {y} lives with {z}"
        " | {z} belongs to {y} | {y} got {z} | {y} has {z} called Max",
        "what animal does {y} have | which animal does {y} have | what pet does {y} have | which pet does {y} keep"
        " | does {y} have a pet, and which | what kind of pet does {y} have | what animal lives with {y}",
        ("{y} is the proud owner of {z} | {y} shares a house with {z}",
         "what kind of animal does {y} keep | what pet lives at {y}'s house"),
    ),
    _relation(
        "favourite colour | colour", "somebody", "colour",
        "{y} likes {z} best | {y}'s favourite colour is {z} | {y} loves the colour {z} | {y} prefers {z}"
        " | the colour that {y} likes most is {z} | {z} is the colour {y} likes best | {y} paints everything {z}",
        "what is {y}'s favourite colour | which colour does {y} like best | what colour does {y} like"
        " | what colour does {y} prefer | which colour does {y} love | what is the colour {y} likes most",
        ("no colour pleases {y} more than {z} | {y} has everything in {z}, the best of colours",
         "what colour would {y} choose | which colour makes {y} happy"),
    ),
    _relation(
        "favourite food | favourite dish | food", "somebody", "food",
        "{y} likes to eat {z} | {y} eats {z} every day | {y}'s favourite food is {z} | {y} loves {z}"
        " | {y} lives on {z}"
        " | {y} is fond of {z} | {y} always has {z} for lunch | {z} is what {y} likes to eat",
        "what does {y} like to eat | what food does {y} like | what is {y}'s favourite food | what does {y} eat"
        " | what does {y} have for lunch | what is {y} fond of | which food does {y} love",
        ("{y} cannot get enough of {z} | give {y} a plate of {z} at any time",
         "what should i cook for {y} | what does {y} want on a plate"),
    ),
    _relation(
        "age", "somebody", "small number",
        "{y} is {z} years old | {y} is {z} | {y} turned {z} | {y} is aged {z} | {y}, aged {z}, is here"
        " | at {z} years, {y} is still young | {y} has been alive for {z} years | {y} is now {z} years of age",
        "how old is {y} | what is {y}'s age | how many years old is {y} | what age is {y} | how old did {y} turn"
        " | tell me how old {y} is | do you know how old {y} is",
        ("{y} celebrated a birthday and has {z} candles | {y} has reached the age of {z}",
         "how many years has {y} lived | how many candles go on {y}'s cake"),
    ),
    _relation(
        "best friend | closest friend | friend", "somebody", "person",
        "{y}'s best friend is {z} | {z} is {y}'s best friend | {y} has a friend called {z} | {y} is friends with {z}"
        " | {y} and {z} are best friends | nobody is closer to {y} than {z}",
        "who is {y}'s best friend | what is the name of {y}'s friend | who is {y} friends with | who is close to {y}"
        " | which friend does {y} have | what is {y}'s friend called",
        ("{y} spends every day with a friend, {z} | {y} tells everything to a friend named {z}",
         "who would {y} call a best friend | who is the closest friend that {y} has"),
    ),
    _relation(
        "husband | wife | partner", "person", "person",
        "{y} is married to {z} | {y} married {z} | {y} and {z} are married | {y} has been married to {z} for years"
        " | {z} is the one {y} married | {y} got married to {z}",
        "who is {y} married to | who did {y} marry | what is the name of {y}'s partner | to whom is {y} married"
        " | who married {y} | who is {y}'s spouse",
        ("{y} had a wedding with {z} | {y} said yes to {z}", "whom did {y} take in marriage | who is married to {y}"),
    ),
    _relation(
        "phone number | number | telephone", "somebody", "phone",
        "{y} can be reached at {z} | call {y} at {z} | {y}'s phone number is {z} | to talk to {y}, call {z}"
        " | {y} answers the phone at {z} | phone {y} on {z} | ring {y} at {z} | the number to call for {y} is {z}",
        "what is {y}'s phone number | how can i call {y} | what number do i call for {y} | how do i reach {y}"
        " | at which number is {y} | which number does {y} have | what is the number of {y} | how can i reach {y}",
        ("dial {z} if you want to speak with {y} | {y} picks up at {z}",
         "what do i dial for {y} | on which number can i speak with {y}"),
    ),
    _relation(
        "email | email address | mail address", "somebody", "email",
        "write to {y} at {z} | {y} reads mail at {z} | {y}'s email is {z} | send mail for {y} to {z}"
        " | mail {y} at {z}",
        "what is {y}'s email | where do i send mail for {y} | what email does {y} have | where can i write to {y}",
        ("messages for {y} go to {z} | {y} has the inbox {z}",
         "which inbox does {y} read | where do messages for {y} go"),
    ),
    _relation(
        "birthday | date of birth", "somebody", "date",
        "{y} was born on {z} | {y} has a birthday on {z} | {y} celebrates on {z} | {z} is {y}'s birthday",
        "when was {y} born | when is {y}'s birthday | on which day was {y} born | when does {y} celebrate",
        ("{y} came into the world on {z} | {y} blows out candles on {z}",
         "what day did {y} come into the world | when should i send {y} a birthday card"),
    ),
    _relation(
        "place | position | spot", "thing", "spot",
        "{y} is {z} | {y} stands {z} | {y} lies {z} | you can find {y} {z} | someone left {y} {z} | {y} was put {z}"
        " | {y} is kept {z} | {y} was left {z} | we keep {y} {z} | they put {y} {z} | {y} can be found {z}",
        "where is {y} | where can i find {y} | where did they put {y} | where is {y} kept | where do we keep {y}"
        " | where was {y} left | in what place is {y} | tell me where {y} is | where does {y} stand"
        " | do you know where {y} is | where should i look for {y}",
        ("you will come across {y} {z} | {y} has been hidden {z} | {y} must be {z}",
         "where has {y} been hidden | what is the place to look for {y} | whereabouts is {y}"),
    ),
    _relation(
        "owner", "thing", "person",
        "{y} belongs to {z} | {z} owns {y} | {y} is owned by {z} | {z} is the owner of {y} | {y} was given to {z}"
        " | {z} bought {y} | {y} is {z}'s | that is {z}'s, {y}",
        "who does {y} belong to | whose is {y} | who owns {y} | who is the owner of {y} | to whom does {y} belong"
        " | who has {y} | who bought {y} | whose thing is {y}",
        ("{y} is the property of {z} | {z} calls {y} his own", "whose property is {y} | who can say that {y} is his"),
    ),
    _relation(
        "price | cost", "thing", "price",
        "{y} costs {z} | {y} is sold for {z} | the price of {y} is {z} | you pay {z} for {y}"
        " | you can buy {y} for {z}"
        " | {y} was bought for {z} | for {z} you get {y} | {y} is worth {z} | they ask {z} for {y}",
        "how much does {y} cost | what does {y} cost | how much is {y} | what is the price of {y}"
        " | what do i pay for {y}"
        " | how much do they ask for {y} | how much money is {y} | how expensive is {y} | what is {y} worth",
        ("{y} will set you back {z} | {y} went for {z} at the sale",
         "how much would i have to pay for {y} | how much did {y} go for"),
    ),
    _relation(
        "weight", "thing", "quantity",
        "{y} weighs {z} | {y} has a weight of {z} | {y} is {z} in weight | the scales say that {y} weighs {z}",
        "how much does {y} weigh | how heavy is {y} | what does {y} weigh | what is the weight of {y}",
        ("{y} brings {z} onto the scales | {y} is as heavy as {z}", "what do the scales say for {y}"),
    ),
    _relation(
        "height | size | length", "thing", "quantity",
        "{y} is {z} high | {y} is {z} long | {y} is {z} wide | {y} measures {z} | {y} has a size of {z}",
        "how high is {y} | how long is {y} | how big is {y} | how wide is {y} | how large is {y}"
        " | what does {y} measure",
        ("{y} reaches a size of {z} | we measured {y} and got {z}", "what size is {y} | what was measured for {y}"),
    ),
    _relation(
        "colour", "thing", "colour",
        "{y} is {z} | {y} is painted {z} | {y} has the colour {z} | they painted {y} {z} | {y} looks {z}"
        " | {y} was {z}",
        "what colour is {y} | which colour is {y} | what colour does {y} have | what colour did they paint {y}"
        " | what colour was {y} | how is {y} painted",
        ("{y} glows in {z} | {y} got a coat of {z} paint", "in what colour does {y} shine | which paint is on {y}"),
    ),
    _relation(
        "opening time | opening hour", "house", "clock",
        "{y} opens at {z} | {y} is open from {z} | {y} opens its doors at {z} | from {z} on {y} is open",
        "when does {y} open | at what time does {y} open | what time does {y} open | from when is {y} open",
        ("you can enter {y} from {z} | the doors of {y} open at {z}",
         "how early can i enter {y} | when can i go into {y}"),
    ),
    _relation(
        "closing time | closing hour", "house", "clock",
        "{y} closes at {z} | {y} shuts at {z} | {y} is closed from {z} | {y} closes its doors at {z}",
        "when does {y} close | at what time does {y} close | what time does {y} shut | when is {y} closed",
        ("everybody has to leave {y} by {z} | the doors of {y} are shut at {z}",
         "how late can i stay at {y} | until when can i be at {y}"),
    ),
    _relation(
        "start time | time | beginning", "thing", "clock",
        "{y} starts at {z} | {y} begins at {z} | {y} is at {z} | {y} will start at {z} | {y} takes place at {z}",
        "when does {y} start | what time does {y} begin | at what time is {y} | when is {y} | what time is {y}",
        ("be there for {y} at {z} | {y} gets going at {z}",
         "when should i be there for {y} | when does {y} get going"),
    ),
    _relation(
        "date | day", "thing", "day",
        "{y} is on {z} | {y} takes place on {z} | {y} was moved to {z} | {y} happens on {z} | on {z} we have {y}",
        "on which day is {y} | what day is {y} | when is {y} | which day was {y} moved to | when does {y} take place",
        ("keep {z} free for {y} | {y} has been put off until {z}", "which day should i keep free for {y}"),
    ),
    _relation(
        "author | writer", "thing", "person",
        "{y} was written by {z} | {z} wrote {y} | {z} is the author of {y} | {z} is the one who wrote {y}",
        "who wrote {y} | who is the author of {y} | by whom was {y} written | who was it that wrote {y}",
        ("{y} came from the pen of {z} | {z} sat down to write {y}", "from whose pen is {y} | whose work is {y}"),
    ),
    _relation(
        "builder | maker", "thing", "person",
        "{y} was built by {z} | {z} built {y} | {z} made {y} | {y} was made by {z} | {z} is the one who built {y}",
        "who built {y} | who made {y} | by whom was {y} built | who was it that built {y}"
        " | who is the builder of {y}",
        ("{y} is the work of {z}'s hands | {z} put {y} together", "who put {y} together | whose hands made {y}"),
    ),
    _relation(
        "mayor", "place", "person",
        "the mayor of {y} is {z} | {z} is the mayor of {y} | {z} is mayor in {y} | {y} is led by {z}"
        " | {y} chose {z} as its mayor | in {y} the mayor is {z}",
        "who is the mayor of {y} | what is the name of the mayor of {y} | who is mayor in {y} | who leads {y}"
        " | what is the mayor of {y} called",
        ("{z} sits in the town hall of {y} | {z} was elected in {y}",
         "who was elected in {y} | who sits in the town hall of {y}"),
    ),
    _relation(
        "number of people | population", "place", "digits",
        "{y} has {z} people | {z} people live in {y} | there are {z} people in {y} | {y} is home to {z} people",
        "how many people live in {y} | how many people are there in {y} | how many people does {y} have"
        " | what is the population of {y}",
        ("{y} counts {z} souls | a crowd of {z} lives in {y}",
         "how many souls does {y} count | how large is the crowd in {y}"),
    ),
    _relation(
        "room | room number | office", "somebody", "digits",
        "{y} is in room {z} | {y} sits in room {z} | {y} has room {z} | {y} works in room {z} | room {z} is for {y}",
        "which room is {y} in | in what room does {y} sit | what is {y}'s room | where does {y} sit"
        " | what room is {y} in",
        ("knock at room {z} for {y} | {y} moved into room {z}",
         "which room should i go to for {y} | at what room do i knock for {y}"),
    ),
    _relation(
        "subject", "somebody", "taught",
        "{y} teaches {z} | {y} gives lessons in {z} | {y} teaches {z} at school | {z} is taught by {y}",
        "what does {y} teach | which subject does {y} teach | what subject does {y} give lessons in",
        ("pupils learn {z} from {y} | {y} stands before a class of {z}", "what do pupils learn from {y}"),
    ),
    _relation(
        "instrument", "somebody", "instrument",
        "{y} plays the {z} | {y} plays {z} | {y} is learning the {z} | {y} practises the {z}",
        "which instrument does {y} play | what instrument does {y} play | what does {y} play"
        " | what does {y} practise",
        ("{y} makes music on the {z} | {y} took lessons on the {z}", "on what does {y} make music"),
    ),
    _relation(
        "language", "somebody", "language",
        "{y} speaks {z} | {y} can speak {z} | {y} is learning {z} | {y} talks in {z} | {y} speaks {z} at home",
        "which language does {y} speak | what language does {y} speak | what does {y} speak"
        " | in what language does {y} talk",
        ("you can talk to {y} in {z} | {y} understands only {z}", "what language should i use with {y}"),
    ),
    _relation(
        "sport | hobby", "somebody", "sport",
        "{y} does {z} on weekends | {y} is good at {z} | {y} practises {z} | {y} goes in for {z} | {y} enjoys {z}",
        "which sport does {y} do | what sport does {y} like | what is {y} good at | what does {y} do on weekends",
        ("{y} spends free time on {z} | {y} joined a {z} club",
         "what does {y} do in free time | which club did {y} join"),
    ),
    _relation(
        "car | vehicle", "somebody", "vehicle",
        "{y} drives {z} | {y} comes to work in {z} | {y} goes around in {z} | {y} bought {z}"
        " | {y} has {z} in the yard",
        "what does {y} drive | which car does {y} have | what does {y} come to work in | what vehicle does {y} have",
        ("{y} sits at the wheel of {z} | {y} parks {z} outside",
         "what does {y} park outside | at the wheel of what is {y}"),
    ),
    _relation(
        "capital", "place", "place",
        "the capital of {y} is {z} | {z} is the capital of {y} | {y} has its capital in {z} | {y} is ruled from {z}",
        "what is the capital of {y} | which town is the capital of {y} | where is the capital of {y}"
        " | from where is {y} ruled",
        ("{y} has {z} as its main town | the government of {y} sits in {z}", "where does the government of {y} sit"),
    ),
    _relation(
        "year | founding year", "house", "year",
        "{y} was founded in {z} | {y} was built in {z} | {y} dates from {z} | {y} opened in {z}"
        " | {y} has existed since {z}",
        "when was {y} founded | when was {y} built | in which year was {y} founded | in what year did {y} open"
        " | since when has {y} existed | what year does {y} date from",
        ("{z} saw the beginning of {y} | {y} goes back to {z}",
         "how far does {y} go back | what year saw the beginning of {y}"),
    ),
    _relation(
        "password", "house", "code",
        "to get into {y}, say {z} | the word for {y} is {z} | type {z} to open {y} | you get into {y} with {z}"
        " | {y} opens with {z} | log in to {y} with {z}",
        "what is the password for {y} | how do i get into {y} | what do i type to open {y}"
        " | what do i say to get into {y}"
        " | with what does {y} open | how can i log in to {y}",
        ("{y} lets you in if you enter {z} | murmur {z} at {y}",
         "what must i enter at {y} | what do i murmur at {y}"),
    ),
)  # fmt: skip

HELD_OUT_RELATIONS = (
    _relation(
        "", "somebody", "food",
        "{y} gets a rash from {z} | {y} is allergic to {z}", "what is {y} allergic to | what gives {y} a rash",
    ),
    _relation(
        "", "thing", "spot",
        "{y} casts its shade {z} | {y} throws shade {z}",
        "where does {y} cast its shade | where does {y} throw shade",
    ),
    _relation(
        "", "somebody", "person",
        "{y} got beaten by {z} at cards | {y} lost a bet against {z}",
        "who was {y} beaten by at cards | against whom did {y} lose a bet",
    ),
    _relation(
        "", "somebody", "word",
        "people tease {y} with the word {z} | {z} is what people tease {y} with",
        "with what do people tease {y} | which word do people tease {y} with",
    ),
    _relation(
        "", "thing", "quantity",
        "{y} burns {z} of coal a year | every year {y} burns {z} of coal",
        "how much coal does {y} burn | what amount of coal does {y} burn a year",
    ),
    _relation(
        "", "place", "food",
        "{y} exports {z} | traders ship {z} out of {y}", "what does {y} export | what do traders ship out of {y}",
    ),
    _relation(
        "", "thing", "person",
        "{y} was stolen by {z} | the thief of {y} is {z}", "who stole {y} | who is the thief of {y}",
    ),
    _relation(
        "", "somebody", "place",
        "{y} went on holiday to {z} | {y} flew to {z} for the holiday",
        "where did {y} go on holiday | where did {y} fly for the holiday",
    ),
)  # fmt: skip
