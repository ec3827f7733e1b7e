"""List the sentence patterns of the grammar, by kind of text."""

from collections.abc import Mapping


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


KINDS: Mapping[str, tuple[str, ...]] = {
    "everyday": _lines("""
        {one} is {do.ing} {place}.
        {one} is {do.ing}.
        {one} {do.s} {place}.
        {one} {do.past} {when}.
        {many} are {do.ing} {place}.
        {many} are {do.ing}.
        {many} {do.past} {place} {when}.
        {one} and {person} are {do.ing}.
        {one} is {do.ing} while {person} is {do.ing}.
        {one} is {do.ing} {scene}.
        {many} are {do.ing} {scene}.
        {one} is {do.ing} and {person} is watching.
        The {looks} {persons} are {do.ing} {scene}.
        {one} and {one} are {do.ing} {place}.
        {one} and {creature} are {move.ing} {scene}.
        {one} is {do.ing} with {creature} {scene}.
        {ingredient} are being washed by {person}.
        {thing} is being carried by {person}.
        There are no {persons} {do.ing} {scene}.
        {creature} is looking at {creature} {scene}.
        {creature} with a {colour} collar is {move.ing} {scene}.
        {many} in {colour} clothes are standing {scene}.
        {thing} is lying {scene}.
        A {colour} bird is sitting on {obstacle}.
        {vehicle} is parked {scene}.
        {creature} is {move.ing} {place}.
        {creatures} are {move.ing} {place}.
        {creature} is {move.ing} next to {creature}.
        {one} in a {colour} {clothes} is {do.ing} {place}.
        There is no {fur} {animal} {place}.
        Nobody is {do.ing} {place}.
        {one} is not {do.ing}.
        {one} is standing {place} with {thing}.
        {many} sit around a table and talk about {topic}.
        {one} puts {ingredient} into a pan.
        {thing} lies on the table next to {thing}.
        She put {thing} and {thing} into the {colour} car.
        He had forgotten {thing} {place}.
        My {device} broke {when}, so I read {reading}.
        We met {one} {place} {when}.
        It was raining, and {many} were waiting {place}.
        The {quality} part of the day was {do.ing}.
    """),
    "headline": _lines("""
        {number} killed in {country} after {disaster}
        {disaster} kills {number} in {city}
        {official} calls for talks on {issue}
        {country} and {country} agree on {issue}
        {official} rejects plan for {issue}
        {city}: {number} arrested over {disaster}
        {official} warns of {disaster} in {country}
        {country} votes on {issue} {when}
        Thousands protest against {issue} in {city}
        {official} of {country} resigns over {issue}
        Oil falls {figure} percent as {country} raises output
        {company} to cut {figure} jobs in {country}
        {country} beats {country} in {sport} final
        {number} rescued after {disaster} near {city}
        {official} to visit {city} for talks on {issue}
        {country} sends aid after {disaster}
        Former {country} minister jailed for {number} years
        Scientists find new {animal} in {country}
    """),
    "news": _lines("""
        {number} people were killed and {figure} wounded by {disaster} in {city} on {day}, police said.
        {official} said on {day} that {issue} would be discussed in {month}.
        A spokesman for {official} declined to comment on {issue}.
        {company} said its profit rose {figure} percent in the quarter ended in {month}.
        Shares of {company} fell {figure} percent to {figure} on {day}.
        {official} in {city} has approved {issue} after months of debate.
        The index rose {figure} points, or {figure} percent, on {day}.
        "{issue} cannot wait any longer," {official} told reporters in {city}.
        {country} has agreed to pay {figure} million dollars to {country} for damage from {disaster}.
        {company} will close {number} plants in {country} by the end of {month}.
        According to {official}, {figure} percent of voters in {country} support {issue}.
        Rescue workers searched for survivors after {disaster} near {city}, where {figure} people are missing.
        {official} accused {country} of breaking the agreement on {issue}.
        The trial of {number} men accused of {disaster} opened in {city} {when}.
        The Commission notes that {issue} remains a concern for the people of {country}.
        I should like to thank the speakers, who have made {issue} clear to all of us.
        Two sets of figures about {issue} were published in {month}, and they do not agree.
        {company} has offered {figure} dollars a share for {company}, people close to the talks said.
    """),
    "question": _lines("""
        How do I clean {thing} without {do.ing}?
        What is the best way to cook {ingredient} with {ingredient}?
        Why does my {device} stop when I {do.base}?
        Is it safe to {do.base} {place}?
        How long should I keep {food} in the fridge?
        What is the difference between {substance} and {substance}?
        Can I take {thing} on a plane to {country}?
        How much does it cost to repair a {device}?
        Where can I learn {topic} in {city}?
        Should I tell {person} that I am {feeling}?
        Which {product} would you recommend to somebody who likes {topic}?
        How do I sort a {code} by {code} in {language}?
        Why does {science} matter for {science}?
        Who invented the {device}?
        What should I wear to {city} in {month}?
        How can I stop my {animal} from {move.ing} {place}?
        Does anyone know how to connect a {device} to a {device}?
        What does it mean when somebody says that {subject} is {quality}?
        Is there an easy way to convert a {code} to a {code}?
        When is it too late to {do.base}?
        Do I need a visa to travel from {country} to {country}?
        How do you get used to {do.ing} every day?
    """),
    "opinion": _lines("""
        I think {subject} is more important than {subject}.
        You should talk to {person} before you decide anything.
        In my experience, {topic} is {quality} at first but you get used to it.
        I don't believe that {official} cares about {subject}.
        It depends on how much time you have for {topic}.
        I agree that {subject} is {quality}, but you have not shown why.
        If I were you, I would sell the {device} and buy a new one.
        There is no evidence that {subject} has anything to do with {subject}.
        I would try {do.ing} for a week and see how you feel.
        You can use either {ingredient} or {ingredient}; it makes no difference.
        Try to clean the {device} first, and if that does not help, replace it.
        That is not what I said about {subject}, and you know it.
        Most people I know learned {topic} from {reading}.
        To me it sounds {quality}, but I may be wrong.
        It is hard to argue about {subject} with somebody who has never thought about it.
        The short answer is no, because {science} does not work that way.
        You are assuming that {subject} and {subject} are the same thing.
        As somebody who teaches {topic}, I find this {quality}.
        Keep {ingredient} and {ingredient} in separate bags, and they will last longer.
        I have tried both, and {do.ing} works better than {do.ing}.
        Why would anybody who believes in {subject} vote for {issue}?
        It is up to you whether you want to spend {figure} dollars on a {device}.
    """),
    "request": _lines("""
        Please send me {reading} by {day}.
        Could you bring {thing} and {food} {when}?
        Turn the {device} off before you leave.
        Set an alarm for {number} in the morning.
        Book a table for {number} people {when}.
        Remind me to call {person} {when}.
        I would like to order {food} and {drink}, please.
        Can you tell me how to get to the station from here?
        Please let me know whether {number} people can come on {day}.
        Cancel my appointment on {day} and move it to {month}.
        Find me a cheap flight from {city} to {city} in {month}.
        Add {ingredient} and {ingredient} to the shopping list.
        Do not leave {thing} {place}.
        I have not received my order of {month} {figure}; please check what happened.
        My account was charged twice for the {product}, and I want my money back.
        Play some music for {do.ing}.
        Show me pictures of {animals} {place}.
        Write a short text about {topic} for {persons}.
    """),
    "review": _lines("""
        The {aspect} was {praise}, but the {aspect} was {blame}.
        The {aspect} is {praise} and the {aspect} is {praise}.
        I bought this {product} for {person}, and it was {praise}.
        I would not recommend this {product} to anyone: the {aspect} is {blame}.
        A {praise} {product} with a {quality} {aspect}.
        This {product} is {blame}, and the {aspect} is {blame} too.
        After {number} weeks the {aspect} was still {praise}.
        An hour too long, {blame}, and yet the {aspect} is {praise}.
        Never again: {blame} {aspect}, {blame} {aspect}.
        We loved the {aspect} of this {product}, and the children liked it too.
        The {product} tries to say something about {subject} but ends up {blame}.
        If you like {topic}, this {product} is for you.
        It is {praise} for the price, although the {aspect} could be better.
        Funny, warm and {praise}, this is the best {product} of the year.
        The {aspect} makes you forget how {blame} the {aspect} is.
    """),
    "chat": _lines("""
        haha yes, see you at {number}!
        sorry, i missed your call, i was {do.ing}
        can't wait for {day} :)
        anyone up for {sport} {when}?
        just saw {one} {do.ing} {place} lol
        ok, i'll bring {drink} and you bring {food}
        so {feeling} right now
        good morning {city}!
        my {device} died again, third time this {month}
        do you still have my {clothes}? i think i left it {place}
        new post: {number} things i learned from {topic}
        {issue} again... when will {official} learn
        thanks a lot, that was really {quality}!
        what a game! {country} {figure}, {country} {figure}
        i am {feeling} that you could not come {when}
        happy birthday!! have a great day with lots of {food}
        no idea, ask {person}
        watching {country} against {country} with {drink}
    """),
    "fact": _lines("""
        {science} needs {science} because {substance} cannot do it alone.
        {substance} is heavier than {substance}.
        When {substance} is heated, it changes into {substance}.
        {science} pulls on {science} and makes it move.
        A {device} needs {substance} before it can be used.
        {country} lies to the north of {country}.
        The capital of {country} is {city}.
        {animals} eat {food}, and {animals} do not.
        The {code} is closed when the {code} ends.
        Return the {code} of the {code}, or an empty {code} if there is none.
        {topic} became popular in {country} in the last century.
        The {device} works because {science} turns into {science}.
        {substance} and {substance} do not mix.
        The act of {do.ing}.
        The state of being {looks} or {looks}.
        A person who is {quality} at {topic}.
        A tool that is used for {do.ing}.
        {animals} live {place} and {move.base} at night.
    """),
}
"""Patterns by kind; "{slot}" is filled from `words`, "{do.ing}" by a verb with its object in that form."""
